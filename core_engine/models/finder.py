"""Finds a model's attention layers on the meta device, or refuses the model with the reason.

Two forward passes run without weights. In the first, a probing attention function and a probing mask
function record what each layer asks for: heads, dims, scale, soft cap, sinks and what its mask means. In
the second, the engine's own attention function must be called the same way with no mask at all, and
nothing outside attention may mix tokens. What a model's class says of itself is not consulted.
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
from core_engine.attention.base import LayerParams
from core_engine.errors import UnsupportedModel
from core_engine.kv_cache.specs import KVCacheSpec
from core_engine.models.attention_hook import ATTENTION_NAME, ATTRIBUTE, register_attention
from core_engine.models.logits import make_logits_function
from core_engine.models.mask_probe import kind_of, probe_mask
from core_engine.models.rotary import fix_longrope, refuse_dynamic_rotary
from core_engine.models.signatures import accepted_arguments, takes_argument
from core_engine.models.token_mixing import TokenMixingProbe, probe_length

__all__ = ["Findings", "FoundLayer", "find_layers"]

_PROBE_NAME = "core_engine_probe"
#: Arguments of an attention call that the finder understands or that change nothing.
_KNOWN_ARGUMENTS = frozenset(
    {"scaling", "softcap", "s_aux", "sliding_window", "dropout", "is_causal", "position_ids", "use_cache",
     "output_attentions", "output_hidden_states", "output_router_logits", "cache_position",
     "position_embeddings", "return_dict", "layer_idx"}
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundLayer:
    """One attention layer as its first call showed it."""

    #: The attention module's name in the model.
    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    #: Multiplies query · key.
    scale: float
    soft_cap: float | None = None
    #: Positions that a query sees, itself included; None for all earlier ones.
    sliding_window: int | None = None
    #: The softmax has one more logit per head.
    sinks: bool = False
    #: The earlier layer whose keys and values this one reads.
    shares_cache_of: str | None = None

    def params(self, kv_dtype: str) -> LayerParams:
        """Return what `AttentionBackend.forward` needs, with a cache of ``kv_dtype``."""
        spec = KVCacheSpec(
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim_v,
            dtype=kv_dtype,
            sliding_window=self.sliding_window,
        )
        return LayerParams(
            layer_name=self.name,
            spec=spec,
            num_heads=self.num_heads,
            scale=self.scale,
            soft_cap=self.soft_cap,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """The layers in the order of the forward pass, and how the backbone is called."""

    layers: tuple[FoundLayer, ...]
    #: The attribute of the model that holds the backbone.
    backbone_name: str
    #: The part that the model's own forward calls for hidden rows: the backbone or its decoder.
    logits_backbone_name: str


@dataclass(frozen=True, slots=True)
class _Call:
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

    def __init__(self, name: str, calls: list[_Call]) -> None:
        self.name = name
        self.calls = calls

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        self.calls.append(_Call(self.name, query, key, value, sinks=sinks))
        return query.new_empty(query.shape[0], query.shape[1], value.shape[2])


def _probe_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    recorder: Any = module.core_engine_attention
    recorder.calls.append(_Call(recorder.name, query, key, value, attention_mask, arguments))
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None


def find_layers(model: Any) -> Findings:
    """Run the probing passes over ``model``, which lies on the meta device, and return its layers.

    Raises `UnsupportedModel` with the reason when the engine cannot compute what the model means.
    """
    kind = type(model).__name__
    try:
        return _find(model)
    except UnsupportedModel:
        raise
    except Refusal as refusal:
        raise UnsupportedModel(f"{kind} is not supported: {refusal}") from None


class Refusal(Exception):
    """Why a model is refused; turned into `UnsupportedModel` with the model's name."""


def _find(model: Any) -> Findings:
    config = model.config.get_text_config()
    if getattr(model.config, "is_encoder_decoder", False):
        raise Refusal("it is an encoder-decoder")
    backbone_name, backbone = _backbone(model)
    if not takes_argument(backbone, "position_ids"):
        raise Refusal("its backbone takes no position_ids, so tokens of several requests cannot share a step")
    _refuse_other_layers(config)
    refuse_dynamic_rotary(model)
    fix_longrope(model, max_model_len=1)  # any choice will do: only that there is one matters here
    num_tokens = probe_length(model)
    with _recorders(model) as calls:
        _run_probe(model, backbone, num_tokens)
        layers = _read_calls(list(calls), config)
        calls.clear()
        _run_engine(model, backbone, num_tokens)
        if [call.name for call in calls] != [layer.name for layer in layers]:
            raise Refusal("it calls attention otherwise when it gets no mask")
    logits_backbone = _check_logits(model, backbone_name, config)
    return Findings(layers=tuple(layers), backbone_name=backbone_name, logits_backbone_name=logits_backbone)


def _backbone(model: Any) -> tuple[str, torch.nn.Module]:
    """Return the part of ``model`` that computes hidden rows: by its prefix, else its only model."""
    from transformers import PreTrainedModel

    named = getattr(model, model.base_model_prefix, None)
    if isinstance(named, torch.nn.Module):
        return model.base_model_prefix, named
    parts = [(name, part) for name, part in model.named_children() if isinstance(part, PreTrainedModel)]
    if len(parts) != 1:
        raise Refusal("its backbone is not a part of its own")
    return parts[0]


def _refuse_other_layers(config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        raise Refusal(f"some of its layers are {' and '.join(sorted(kinds))}")


@contextmanager
def _recorders(model: torch.nn.Module) -> Iterator[list[_Call]]:
    calls: list[_Call] = []
    modules = dict(model.named_modules())
    for name, module in modules.items():
        setattr(module, ATTRIBUTE, _Recorder(name, calls))
    try:
        yield calls
    finally:
        for module in modules.values():
            delattr(module, ATTRIBUTE)


def _run_probe(model: Any, backbone: torch.nn.Module, num_tokens: int) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(_PROBE_NAME, _probe_attention)
    AttentionMaskInterface.register(_PROBE_NAME, probe_mask)
    model.set_attn_implementation(_PROBE_NAME)
    # With a mask of ones transformers does not look for packed sequences, which needs real positions.
    mask = torch.ones(1, num_tokens, dtype=torch.int64, device="meta")
    _forward(backbone, num_tokens, attention_mask=mask)


def _run_engine(model: Any, backbone: torch.nn.Module, num_tokens: int) -> None:
    register_attention()
    model.set_attn_implementation(ATTENTION_NAME)
    with TokenMixingProbe(num_tokens) as probe:
        _forward(backbone, num_tokens)
    if probe.found is not None:
        raise Refusal(f"it mixes tokens outside attention ({probe.found})")


def _forward(backbone: torch.nn.Module, num_tokens: int, **extra: Any) -> None:
    ids = torch.zeros(1, num_tokens, dtype=torch.int64, device="meta")
    positions = torch.zeros_like(ids)
    arguments = accepted_arguments(backbone, {"use_cache": False, **extra})
    try:
        with _without_data(), _watched_position_tables(backbone, positions):
            backbone(input_ids=ids, position_ids=positions, **arguments)
    except Refusal:
        raise
    except Exception as error:
        if any(isinstance(module, torch.nn.Conv1d) for module in backbone.modules()):
            raise Refusal("it has convolutions or state-space layers along the tokens") from error
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
def _without_data() -> Iterator[None]:
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


def _read_calls(calls: list[_Call], config: Any) -> list[FoundLayer]:
    expected = config.num_hidden_layers
    if len({call.name for call in calls}) != len(calls):
        raise Refusal("it runs the same attention layer more than once")
    if len(calls) != expected:
        raise Refusal(f"only {len(calls)} of its {expected} layers are attention that the engine can serve")
    layers: list[FoundLayer] = []
    for index, call in enumerate(calls):
        owner = next((c.name for c in calls[:index] if c.key is call.key and c.value is call.value), None)
        layers.append(_read_call(call, owner))
    return layers


def _read_call(call: _Call, owner: str | None) -> FoundLayer:
    arguments = call.arguments or {}
    odd = sorted(
        name
        for name, value in arguments.items()
        if name not in _KNOWN_ARGUMENTS and isinstance(value, torch.Tensor)
    )
    if odd:
        raise Refusal(f"its attention takes {', '.join(odd)}, which the engine cannot serve")
    if arguments.get("is_causal") is False:
        raise Refusal("its attention is bidirectional: tokens see later tokens")
    kind = kind_of(call.mask)
    if kind is None:
        what = "no mask" if call.mask is None else "a mask that carries more than what a token sees"
        raise Refusal(f"its attention gets {what}")
    if kind.refusal is not None:
        raise Refusal(kind.refusal)
    if call.query.shape[0] != 1 or call.key.shape[2] != call.query.shape[2]:
        raise Refusal("its attention reads keys that do not belong to the tokens of the step")
    scale = arguments.get("scaling")
    soft_cap = arguments.get("softcap")
    for name, value in (("scaling", scale), ("softcap", soft_cap)):
        if value is not None and not isinstance(value, int | float):
            raise Refusal(f"its attention's {name} is not a constant")
    return FoundLayer(
        name=call.name,
        num_heads=call.query.shape[1],
        num_kv_heads=call.key.shape[1],
        head_dim=call.query.shape[3],
        head_dim_v=call.value.shape[3],
        scale=float(call.query.shape[3] ** -0.5 if scale is None else scale),
        soft_cap=None if soft_cap is None else float(soft_cap),
        sliding_window=kind.sliding_window,
        sinks=arguments.get("s_aux") is not None,
        shares_cache_of=owner,
    )


def _check_logits(model: Any, backbone_name: str, config: Any) -> str:
    """Return the name of the part whose place a stub can take, after computing logits with it."""
    rows = torch.empty(3, config.hidden_size, device="meta", dtype=model.dtype)
    inner = f"{backbone_name}.decoder"
    try:
        return _shape_of_logits(model, backbone_name, rows)
    except Exception as error:
        if not isinstance(getattr(getattr(model, backbone_name), "decoder", None), torch.nn.Module):
            raise Refusal(
                f"its logits cannot be computed from hidden rows "
                f"({type(error).__name__}: {error_line(error, 160)})"
            ) from error
    return _shape_of_logits(model, inner, rows)


def _shape_of_logits(model: Any, name: str, rows: torch.Tensor) -> str:
    with _without_data():
        logits = make_logits_function(model, name)(rows)
    if logits.dim() != 2 or logits.shape[0] != rows.shape[0]:
        raise Refusal(f"its logits have shape {tuple(logits.shape)} for {rows.shape[0]} rows")
    return name
