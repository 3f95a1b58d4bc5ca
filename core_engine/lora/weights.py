"""An adapter's tensors: from PEFT's names and shapes to one pair of matrices per module of the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from core_engine._text import error_line
from core_engine.errors import AdapterError, did_you_mean
from core_engine.lora.adapter import WEIGHTS_FILE

if TYPE_CHECKING:
    from core_engine.lora.adapter import AdapterConfig, AdapterFiles
    from core_engine.lora.layers import LoRALinear

__all__ = ["ModuleWeights", "read_adapter_weights"]

#: ``(A [rank, in_features], scale · Bᵀ [rank, out_features])`` of one module.
ModuleWeights = tuple[torch.Tensor, torch.Tensor]

_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_MAX_NAMES = 5


def read_adapter_weights(
    files: AdapterFiles,
    config: AdapterConfig,
    layers: Mapping[str, LoRALinear],
    *,
    max_rank: int,
    dtype: torch.dtype,
    others: Iterable[str] = (),
) -> dict[str, ModuleWeights]:
    """Return the matrices of each module that the adapter changes, in ``dtype`` on the host.

    ``layers`` are the modules that take an adapter, by name; ``others`` the names of the rest, for the
    reason of a refusal. Raises `AdapterError` for a damaged file, tensors that are no low-rank pair,
    modules that the model lacks or that take no adapter, and ranks and shapes that do not fit.
    """
    subject = f"adapter {files.folder!r}"
    pairs = _pairs(files, subject)
    _check_targets(config.target_modules, pairs, layers, subject)
    known = frozenset(others)
    return {
        module: _matrices(module, pair, config, layers, known, max_rank, dtype, subject)
        for module, pair in pairs.items()
    }


def _pairs(files: AdapterFiles, subject: str) -> dict[str, dict[str, torch.Tensor]]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(files.weight_bytes)
    except (SafetensorError, ValueError, KeyError) as error:
        raise AdapterError(f"{subject}: {WEIGHTS_FILE} is damaged ({error_line(error)})", "lora") from None
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    odd = []
    for name, tensor in sorted(tensors.items()):
        match = _NAME.fullmatch(name)
        if match is None:
            odd.append(name)
        else:
            pairs.setdefault(match["module"], {})[match["side"]] = tensor
    if odd:
        raise AdapterError(
            f"{subject} holds tensors that are no low-rank pair of a linear layer: {_some(odd)}", "lora"
        )
    if not pairs:
        raise AdapterError(f"{subject} holds no tensors", "lora")
    halves = [f"{module}.lora_{side}" for module, pair in pairs.items() for side in "AB" if side not in pair]
    if halves:
        raise AdapterError(f"{subject} lacks {_some(halves)}", "lora")
    return pairs


def _check_targets(
    targets: Sequence[str], modules: Iterable[str], layers: Iterable[str], subject: str
) -> None:
    """Refuse an adapter whose config names a module that its file has no weights for."""
    found = list(modules)
    for target in targets:
        if not any(module == target or module.endswith(f".{target}") for module in found):
            kinds = sorted({layer.rpartition(".")[2] for layer in layers})
            raise AdapterError(
                f"{subject} was made for modules {target!r}, but holds no weights for any; this model's "
                f"modules are {', '.join(kinds)}",
                "lora",
            )


def _matrices(
    module: str,
    pair: Mapping[str, torch.Tensor],
    config: AdapterConfig,
    layers: Mapping[str, LoRALinear],
    others: frozenset[str],
    max_rank: int,
    dtype: torch.dtype,
    subject: str,
) -> ModuleWeights:
    layer = layers.get(module)
    if layer is None:
        raise AdapterError(f"{subject} changes {module!r}: {_why_not(module, layers, others)}", "lora")
    rank = config.rank_of(module)
    if rank > max_rank:
        raise AdapterError(
            f"{subject} has rank {rank}, but max_lora_rank is {max_rank}: start the engine with "
            f"max_lora_rank={rank}",
            "lora",
        )
    for side, wanted in (("A", (rank, layer.in_features)), ("B", (layer.out_features, rank))):
        tensor = pair[side]
        if tuple(tensor.shape) != wanted or not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise AdapterError(
                f"{subject}: lora_{side} of {module!r} is {kind} {list(tensor.shape)}; with the rank {rank} "
                f"of its config and this model it must be floating-point {list(wanted)}",
                "lora",
            )
    down = pair["A"].to(dtype).contiguous()
    up = (pair["B"].float() * config.scale_of(module)).t().to(dtype).contiguous()
    if not (down.isfinite().all() and up.isfinite().all()):
        name = str(dtype).removeprefix("torch.")
        raise AdapterError(f"{subject}: weights of {module!r} are not finite in {name}", "lora")
    return down, up


def _why_not(module: str, layers: Mapping[str, LoRALinear], others: frozenset[str]) -> str:
    if "experts" in module.split("."):
        return "the experts of mixture models take no adapter"
    if module in others:
        return "only linear layers of the backbone that see every token once take an adapter"
    return f"the model has no such module.{did_you_mean(module, layers)}"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_NAMES
    return ", ".join(sorted(names)[:_MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")
