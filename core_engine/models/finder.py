"""Finds a model's attention layers on the meta device, or refuses the model with the reason.

Two forward passes run without weights. In the first, a probing attention function and a probing mask
function record what each layer asks for: heads, dims, scale, soft cap, sinks and what its mask means. In
the second, the engine's own attention function must be called the same way with no mask at all, and
nothing outside attention may mix tokens. Parts that run only with data are tried with data (`data_parts`).
What a model's class says of itself is not consulted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from core_engine._text import error_line
from core_engine.attention.base import LayerParams
from core_engine.errors import UnsupportedModel
from core_engine.kv_cache.specs import KVCacheSpec
from core_engine.models._quiet import quiet_transformers
from core_engine.models.data_parts import DataParts
from core_engine.models.logits import make_logits_function
from core_engine.models.mask_probe import kind_of
from core_engine.models.probing_passes import (
    AttentionCall,
    Refusal,
    recorded_calls,
    run_engine,
    run_probe,
    without_data,
)
from core_engine.models.rotary import fix_longrope, refuse_dynamic_rotary
from core_engine.models.signatures import takes_argument
from core_engine.models.token_linears import watch_linears
from core_engine.models.token_mixing import probe_length

__all__ = ["Findings", "FoundLayer", "find_layers"]

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
    #: The backbone's linear layers that see every token once.
    token_linears: tuple[str, ...]


def find_layers(model: Any) -> Findings:
    """Run the probing passes over ``model``, which lies on the meta device, and return its layers.

    Raises `UnsupportedModel` with the reason when the engine cannot compute what the model means.
    """
    kind = type(model).__name__
    try:
        with quiet_transformers():
            return _find(model)
    except UnsupportedModel:
        raise
    except Refusal as refusal:
        raise UnsupportedModel(f"{kind} is not supported: {refusal}") from None


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
    with recorded_calls(model) as calls:
        parts = DataParts(backbone, calls, num_tokens)
        run_probe(model, backbone, num_tokens, parts)
        layers = _read_calls(list(calls), config)
        calls.clear()
        with watch_linears(model, num_tokens) as linears:
            run_engine(model, backbone, num_tokens, parts)
        if [call.name for call in calls] != [layer.name for layer in layers]:
            raise Refusal("it calls attention otherwise when it gets no mask")
    logits_backbone = _check_logits(model, backbone_name, config)
    return Findings(
        layers=tuple(layers),
        backbone_name=backbone_name,
        logits_backbone_name=logits_backbone,
        token_linears=linears.token_linears,
    )


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


def _read_calls(calls: list[AttentionCall], config: Any) -> list[FoundLayer]:
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


def _read_call(call: AttentionCall, owner: str | None) -> FoundLayer:
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
    with without_data():
        logits = make_logits_function(model, name)(rows)
    if logits.dim() != 2 or logits.shape[0] != rows.shape[0]:
        raise Refusal(f"its logits have shape {tuple(logits.shape)} for {rows.shape[0]} rows")
    return name
