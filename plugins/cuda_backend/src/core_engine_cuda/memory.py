"""What of a GPU's memory the KV cache may take. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from core_engine.plugin import DoesNotFit

__all__ = ["MemoryUse", "graph_reserve", "kv_cache_share"]

_MIB = 1 << 20
#: What a graph takes besides tensors, for each attention layer of the model: an estimate, not measured yet.
_GRAPH_LAYER_BYTES = 128 << 10
#: More than this before an engine begins is not CUDA's own.
_CONTEXT_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    """A GPU's memory after the model was loaded and the largest step was tried, in bytes."""

    total: int
    #: In use when the engine had just opened the GPU: CUDA itself, and other programs.
    before: int
    weights: int
    #: What this engine has taken besides: code of kernels, buffers.
    overhead: int
    #: What the largest step takes.
    activations: int
    #: Kept back for CUDA graphs, which are captured when the KV cache stands.
    graphs: int

    @property
    def taken(self) -> int:
        """All of it but the KV cache."""
        return self.before + self.weights + self.overhead + self.activations + self.graphs


def graph_reserve(num_sizes: int, num_layers: int, activation_bytes: int, share_of_step: float) -> int:
    """Return the bytes to keep back for the graphs of ``num_sizes`` decode steps; 0 for none.

    Their tensors lie in one pool, which the largest fills; ``share_of_step`` is its part of the largest
    step, of which ``activation_bytes`` are known.
    """
    if not num_sizes:
        return 0
    return int(activation_bytes * share_of_step) + num_sizes * num_layers * _GRAPH_LAYER_BYTES


def kv_cache_share(use: MemoryUse, share: float) -> tuple[int, str]:
    """Return the bytes that ``share`` of the memory leaves for the KV cache, and the rule in words.

    Raises `DoesNotFit` with all numbers where nothing is left.
    """
    usable = int(use.total * share)
    left = usable - use.taken
    if left <= 0:
        raise DoesNotFit(
            f"{share:.0%} of the GPU's {_mib(use.total)} are {_mib(usable)}; the weights take "
            f"{_mib(use.weights)}, the largest step {_mib(use.activations)}, its buffers and kernels "
            f"{_mib(use.overhead)}, graphs {_mib(use.graphs)}, CUDA and other programs {_mib(use.before)}: "
            f"{_mib(-left)} too much, and the KV cache has nothing. {_advice(use, -left)}"
        )
    return left, f"{share:.0%} of the GPU's memory, less what is in use, the largest step and graphs"


def _advice(use: MemoryUse, missing: int) -> str:
    parts = []
    if use.before > _CONTEXT_BYTES:
        parts.append("end other programs on this GPU")
    parts.append("divide the model over more GPUs (tensor_parallel_size)")
    if use.activations > missing:
        parts.append("lower max_num_batched_tokens or max_num_seqs")
    if use.graphs > missing:
        parts.append("capture fewer graph_sizes, or none (enforce_eager)")
    parts.append("raise device_memory_utilization")
    text = ", or ".join(parts)
    return f"{text[0].upper()}{text[1:]}"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:,.0f} MiB"
