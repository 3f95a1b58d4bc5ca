"""The one attention function that core-engine adds to transformers.

Every attention module of a loaded model carries its attention object in ``core_engine_attention``; the
function hands queries, keys and values to it. No mask function is registered for this name, so
transformers builds no mask: what a token sees is the attention object's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

__all__ = ["ATTENTION_NAME", "ATTRIBUTE", "AttentionObject", "attach_attention", "register_attention"]

#: The name of the function in transformers' attention registry.
ATTENTION_NAME = "core_engine"
#: The attribute of an attention module that holds its attention object.
ATTRIBUTE = "core_engine_attention"


class AttentionObject(Protocol):
    """What an attention module may carry: `core_engine.attention.layer.PagedAttention` or a stand-in."""

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attend for ``query [T, heads, dim]``, ``key [T, kv_heads, dim]``, ``value [T, kv_heads, dim_v]``.

        ``sinks`` is ``[heads]`` or None. Returns ``[T, heads, dim_v]``.
        """
        ...


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Pass ``[1, heads, T, dim]`` tensors on to the module's attention object.

    Scale, soft cap and window were read once, when the layers were found, and are constants of the
    attention object; here they are ignored. Returns ``([1, T, heads, dim_v], None)``.
    """
    attention: AttentionObject = module.core_engine_attention  # type: ignore[assignment]
    output = attention(query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), s_aux)
    return output[None], None


def register_attention() -> None:
    """Make the name known to transformers; calling again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, attention_forward)


def attach_attention(module: torch.nn.Module, attention: AttentionObject) -> None:
    """Give ``module`` its attention object; an earlier one is replaced."""
    setattr(module, ATTRIBUTE, attention)
