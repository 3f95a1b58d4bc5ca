"""Runs a model on the meta device, without weights, and records each call of attention.

Two passes: one with a probing attention function and a probing mask function, one with the engine's own
attention function. Whatever keeps a model from running so is a `Refusal`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributions import Distribution
from torch.fx.experimental import _config as fx_config

from core_engine._text import error_line
from core_engine.models.attention_hook import ATTENTION_NAME, ATTRIBUTE, register_attention
from core_engine.models.data_parts import DataParts
from core_engine.models.mask_probe import probe_mask
from core_engine.models.signatures import accepted_arguments
from core_engine.models.token_mixing import TokenMixingProbe

__all__ = ["AttentionCall", "Refusal", "recorded_calls", "run_engine", "run_probe", "without_data"]

_PROBE_NAME = "core_engine_probe"


class Refusal(Exception):
    """Why a model is refused; turned into `UnsupportedModel` with the model's name."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of attention during a probing pass; holds its tensors so that identity stays unique."""

    name: str
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None = None
    arguments: dict[str, Any] | None = None
    sinks: torch.Tensor | None = None


class _Recorder:
    """Stands in for a module's attention object during the probing passes."""

    def __init__(self, name: str, calls: list[AttentionCall]) -> None:
        self.name = name
        self.calls = calls

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        self.calls.append(AttentionCall(self.name, query, key, value, sinks=sinks))
        return _each_alone(query, key, value)


def _each_alone(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Stand in for attention over ``[..., T, heads, dim]``: each token's own query, key and value count."""
    if query.is_meta:
        return query.new_empty(*query.shape[:-1], value.shape[-1])
    groups = query.shape[-2] // key.shape[-2]
    key, value = (tensor.repeat_interleave(groups, -2) for tensor in (key, value))
    return ((query * key).mean(-1, keepdim=True).sigmoid() * value).contiguous()


def _probe_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    recorder: Any = module.core_engine_attention
    recorder.calls.append(AttentionCall(recorder.name, query, key, value, attention_mask, arguments))
    return _each_alone(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)), None


@contextmanager
def recorded_calls(model: torch.nn.Module) -> Iterator[list[AttentionCall]]:
    """Yield the list that the passes inside append to; every module can record meanwhile."""
    calls: list[AttentionCall] = []
    modules = dict(model.named_modules())
    for name, module in modules.items():
        setattr(module, ATTRIBUTE, _Recorder(name, calls))
    try:
        yield calls
    finally:
        for module in modules.values():
            delattr(module, ATTRIBUTE)


def run_probe(model: Any, backbone: torch.nn.Module, num_tokens: int, parts: DataParts) -> None:
    """Run the pass that shows what each layer asks for, its mask included. Raises `Refusal`."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(_PROBE_NAME, _probe_attention)
    AttentionMaskInterface.register(_PROBE_NAME, probe_mask)
    model.set_attn_implementation(_PROBE_NAME)
    # With a mask of ones transformers does not look for packed sequences, which needs real positions.
    mask = torch.ones(1, num_tokens, dtype=torch.int64, device="meta")
    _forward(backbone, num_tokens, parts, attention_mask=mask)


def run_engine(model: Any, backbone: torch.nn.Module, num_tokens: int, parts: DataParts) -> None:
    """Run the pass with the engine's attention and no mask. Raises `Refusal` when tokens mix outside it."""
    register_attention()
    model.set_attn_implementation(ATTENTION_NAME)
    with TokenMixingProbe(num_tokens) as probe:
        output = _forward(backbone, num_tokens, parts)
    if (found := probe.found) is not None:
        raise Refusal(f"it mixes tokens outside attention ({found})")
    del output  # what the probe asks of a result is whether anything keeps it


def _forward(backbone: torch.nn.Module, num_tokens: int, parts: DataParts, **extra: Any) -> Any:
    ids = torch.zeros(1, num_tokens, dtype=torch.int64, device="meta")
    positions = torch.zeros_like(ids)
    arguments = accepted_arguments(backbone, {"use_cache": False, **extra})
    try:
        with without_data(), _watched_position_tables(backbone, positions), parts.stand_in(positions):
            return backbone(input_ids=ids, position_ids=positions, **arguments)
    except Refusal:
        raise
    except Exception as error:
        if any(isinstance(module, torch.nn.Conv1d) for module in backbone.modules()):
            raise Refusal("it has convolutions or state-space layers along the tokens") from error
        if parts.mixing is not None:
            raise Refusal(f"it mixes tokens outside attention (in {parts.mixing})") from error
        raise Refusal(
            f"its forward pass does not run without data ({type(error).__name__}: {error_line(error, 160)})"
        ) from error


@contextmanager
def _watched_position_tables(backbone: torch.nn.Module, positions: torch.Tensor) -> Iterator[None]:
    """Refuse a table of positions with a padding row: such models count from that row, over real tokens."""

    def check(table: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        if arguments and arguments[0] is positions and getattr(table, "padding_idx", None) is not None:
            raise Refusal("its positions are counted from a padding row, over the tokens that are no padding")

    tables = [module for module in backbone.modules() if isinstance(module, torch.nn.Embedding)]
    handles = [table.register_forward_pre_hook(check) for table in tables]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def without_data() -> Iterator[None]:
    """Let code run on the meta device that looks at values in ways which change no shape of attention."""
    checks = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        # Loops over the experts that were hit ask for the places of non-zero elements.
        with (
            torch.device("meta"),
            torch.no_grad(),
            fx_config.patch(meta_nonzero_assume_all_nonzero=True),  # type: ignore[attr-defined]
        ):
            yield
    finally:
        Distribution.set_default_validate_args(checks)
