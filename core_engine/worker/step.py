"""One step on its way to the device: numpy on the host, then the same fields as device tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from core_engine._ragged import Array, FloatArray, IntArray
from core_engine.worker.shape_policy import SamplingKind, StepShape

if TYPE_CHECKING:
    import torch

__all__ = ["SAMPLING_ARRAYS", "DeviceStep", "HostSampling", "HostStep", "SamplingKind"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSampling:
    """The sampler's inputs, one row per request or draft of the padded step; padding rows are greedy."""

    kind: SamplingKind
    #: float32 ``[R]``; 0 takes the most likely token.
    temperature: FloatArray
    #: int32 ``[R]``; the vocabulary's size keeps all.
    top_k: IntArray
    #: float32 ``[R]``
    top_p: FloatArray
    #: float32 ``[R]``
    min_p: FloatArray
    #: int32 ``[R, 2]``: the two Threefry key words of the row's (seed, stream, position).
    noise_keys: IntArray
    #: float32 ``[R, 3]``: repetition, presence, frequency; None without penalties.
    penalties: FloatArray | None = None
    #: bool ``[R, vocab_size]``: tokens of the prompt; None without penalties.
    prompt_mask: Array | None = None
    #: int32 ``[R, vocab_size]``: how often each token stands in the output; None without penalties.
    output_counts: IntArray | None = None
    #: float32 ``[R, vocab_size]`` added to the logits, −inf forbids; None without bias.
    bias: FloatArray | None = None


#: The fields of `HostSampling` that hold arrays.
SAMPLING_ARRAYS = tuple(field.name for field in fields(HostSampling) if field.name != "kind")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostStep:
    """Everything that one step uploads, padded to ``shape`` (T = shape.num_tokens, R = shape.num_reqs).

    Padding tokens are id 0 at position 0, belong to request row 0 for their block table, and write
    to slot 0, which lies in the null block. Padding requests have length 0.
    """

    shape: StepShape
    #: The real sizes.
    num_tokens: int
    num_reqs: int
    #: int32 ``[T]``
    token_ids: IntArray
    #: int32 ``[T]``
    positions: IntArray
    #: int32 ``[T]``: the request row of each token; padding tokens have -1.
    token_rows: IntArray
    #: int32 ``[R + 1]``: request row ``i`` owns tokens ``query_start[i]:query_start[i + 1]``.
    query_start: IntArray
    #: int32 ``[R]``: tokens of each request in the cache after this step; 0 for padding rows.
    seq_lens: IntArray
    #: One per KV-cache group, int32 ``[T]``: ``block * block_size + offset`` of each token.
    slot_mapping: tuple[IntArray, ...]
    #: One per KV-cache group, int32 ``[R, max_blocks_per_request]``; unused entries are 0.
    block_tables: tuple[IntArray, ...]
    #: int32 ``[R]``: the tokens whose hidden rows are sampled, one per request, or where drafts are verified
    #: one per request and draft (`core_engine.worker.draft_rows`); rows that do not sample repeat their
    #: request's last token.
    logits_rows: IntArray
    sampling: HostSampling
    #: The most log-probabilities that a request which samples asks for; None where none asks.
    num_logprobs: int | None = None
    #: Chunks of int32 ``[R]``: tokens whose hidden rows are scored for prompt log-probabilities; the last
    #: chunk repeats its last entry.
    prompt_rows: tuple[IntArray, ...] = ()
    #: Chunks of int32 ``[R]``: the prompt token that follows each of ``prompt_rows``.
    prompt_targets: tuple[IntArray, ...] = ()
    #: int32 ``[T]``: the LoRA slot of each token, -1 for none; None in steps without adapters.
    lora_slots: IntArray | None = None
    #: One per KV-cache group: what `AttentionBackend.build_metadata` made of this step.
    attention: tuple[Mapping[str, Array], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceStep:
    """The fields of a `HostStep` that the programs read, as tensors on the device."""

    shape: StepShape
    #: int32 ``[T]``
    token_ids: torch.Tensor
    #: int32 ``[T]``
    positions: torch.Tensor
    #: int32 ``[R]``
    logits_rows: torch.Tensor
    #: Chunks of int32 ``[R]``, as in `HostStep`.
    prompt_rows: tuple[torch.Tensor, ...]
    prompt_targets: tuple[torch.Tensor, ...]
    #: One mapping per KV-cache group.
    attention: tuple[Mapping[str, torch.Tensor], ...]
    #: The arrays of `HostSampling` by field name; only those that are not None.
    sampling: Mapping[str, torch.Tensor]
    sampling_kind: SamplingKind
    #: int32 ``[T]``, as in `HostStep`.
    lora_slots: torch.Tensor | None = None
