"""What a step of a model must read and compute, and how fast known devices can: a floor for its time.

A decode step reads every matrix once and the keys and values of all its requests; a prefill computes every
product of matrices for each of its tokens. Nothing else is counted (norms, activations, sampling, the rows of
the embedding that are looked up), so a share of 1 cannot be reached.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Limits", "ModelSize", "known_limits"]

#: Words of a device's name → dense bfloat16 TFLOP/s and memory GB/s, from NVIDIA's data sheets. The first
#: that stand in a name count.
_DEVICES = {
    "GB200": (2500.0, 8000.0),
    "B200": (2250.0, 8000.0),
    "GH200": (990.0, 4000.0),
    "H200 NVL": (835.0, 4800.0),
    "H200": (989.0, 4800.0),
    "H100 PCIe": (756.0, 2000.0),
    "H100 NVL": (835.0, 3900.0),
    "H100": (989.0, 3350.0),
    "A100-SXM4-80GB": (312.0, 2039.0),
    "A100 80GB PCIe": (312.0, 1935.0),
    "A100": (312.0, 1555.0),
    "A10G": (70.0, 600.0),
    "A10": (125.0, 600.0),
    "L40S": (362.0, 864.0),
    "L40": (181.0, 864.0),
    "L4": (121.0, 300.0),
    "RTX 4090": (165.2, 1008.0),
    "RTX 3090": (71.0, 936.0),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device can do; None where it is not known."""

    tflop_per_s: float | None = None
    gb_per_s: float | None = None

    def memory_share(self, num_bytes: float, seconds: float) -> float | None:
        """Return the share of the memory's speed that reading ``num_bytes`` in ``seconds`` is."""
        return None if self.gb_per_s is None else num_bytes / seconds / (self.gb_per_s * 1e9)

    def compute_share(self, num_flops: float, seconds: float) -> float | None:
        """Return the share of the arithmetic's speed that ``num_flops`` in ``seconds`` are."""
        return None if self.tflop_per_s is None else num_flops / seconds / (self.tflop_per_s * 1e12)


def known_limits(device: str) -> Limits:
    """Return what the device of that name can do by its data sheet; nothing of a part of one (MIG)."""
    for words, (tflop_per_s, gb_per_s) in _DEVICES.items():
        if re.search(rf"\b{words}\b", device) and " MIG " not in device:
            return Limits(tflop_per_s, gb_per_s)
    return Limits()


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """The sizes of a model of Llama's structure."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    bytes_per_number: int = 2

    @property
    def layer_parameters(self) -> int:
        """Elements of the matrices of all layers."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def head_parameters(self) -> int:
        """Elements of the matrix that makes logits."""
        return self.hidden_size * self.vocab_size

    def decode_bytes(self, num_reqs: int, context_len: float) -> float:
        """Bytes that a decode step reads: ``num_reqs`` requests with ``context_len`` tokens in the cache."""
        cached = 2 * self.num_layers * self.num_kv_heads * self.head_dim * num_reqs * context_len
        return self.bytes_per_number * (self.layer_parameters + self.head_parameters + cached)

    def decode_flops(self, num_reqs: int, context_len: float) -> float:
        """Operations of that step; a multiplication and an addition are two."""
        scores = 4 * self.num_layers * self.num_heads * self.head_dim * context_len
        return num_reqs * (2 * (self.layer_parameters + self.head_parameters) + scores)

    def prefill_flops(self, num_prompts: int, prompt_len: int) -> float:
        """Operations of ``num_prompts`` whole prompts, each of whose tokens sees those before it."""
        pairs = prompt_len * (prompt_len + 1) / 2
        scores = 4 * self.num_layers * self.num_heads * self.head_dim * pairs
        return num_prompts * (2 * (self.layer_parameters * prompt_len + self.head_parameters) + scores)
