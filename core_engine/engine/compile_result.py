"""CompileResult: what compiling an engine for absent devices has shown, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import cached_property

from core_engine._text import aligned, mib, one_line
from core_engine.config import EngineConfig
from core_engine.kv_cache.grouping import block_bytes
from core_engine.kv_cache.specs import KVCacheConfig
from core_engine.plugin import CompiledGraph, DeviceInfo
from core_engine.worker.reports import MemoryBudget

__all__ = ["CompileResult"]

_COLUMNS = ("graph", "step", "seconds", "arguments", "outputs", "aliased", "temp", "code", "custom calls")


@dataclass(frozen=True, kw_only=True)
class CompileResult:
    """The compiled graphs of one engine on one target, and the sum of their memory on one device."""

    backend: str
    target: str
    #: The target's devices over which one worker runs the model.
    devices: tuple[DeviceInfo, ...]
    #: How many devices the target has.
    num_target_devices: int
    #: Settled for them.
    config: EngineConfig
    graphs: tuple[CompiledGraph, ...]
    #: How the memory is divided; None when the weights were already too much for the backend.
    budget: MemoryBudget | None
    #: The KV cache that the graphs were compiled for; None when there is room for none.
    pool: KVCacheConfig | None
    #: Why there is no room for a KV cache.
    shortage: str | None

    @property
    def memory_bytes(self) -> int:
        """The memory of the smallest device."""
        return min(device.memory_bytes or 0 for device in self.devices)

    @property
    def weight_bytes(self) -> int:
        """The weights on one device."""
        return 0 if self.budget is None else self.budget.weight_bytes

    @property
    def kv_cache_bytes(self) -> int:
        """The KV cache on one device."""
        return 0 if self.pool is None else self.pool.num_blocks * block_bytes(self.pool.groups)

    @property
    def num_kv_tokens(self) -> int:
        """Tokens of requests of ``max_model_len`` that the pool holds at once."""
        return 0 if self.pool is None else round(self.pool.max_concurrency * self.pool.max_model_len)

    @property
    def padding_bytes(self) -> int:
        """What weights and KV cache take beyond their own bytes, as the device lays them out.

        It is known where one graph reads all of both; the step's own inputs are part of it.
        """
        largest = max((graph.argument_bytes for graph in self.graphs), default=0)
        return max(0, largest - self.weight_bytes - self.kv_cache_bytes)

    @property
    def _padding_note(self) -> str:
        if self.padding_bytes:
            return "of weights and KV cache in the device's layout"
        return "that is known: no graph reads all weights and the KV cache"

    @property
    def working_bytes(self) -> int:
        """The most that one graph needs besides its arguments."""
        return max((graph.working_bytes for graph in self.graphs), default=0)

    @property
    def code_bytes(self) -> int:
        """All programs together, which stay on the device."""
        return sum(graph.code_bytes for graph in self.graphs)

    @property
    def needed_bytes(self) -> int:
        """Everything that lies on one device while the largest graph runs."""
        held = self.weight_bytes + self.kv_cache_bytes + self.padding_bytes + self.code_bytes
        return held + self.working_bytes

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """Why the engine would not run on the target; none when it compiles and fits."""
        failed = [f"{graph.name}, {graph.step}: {graph.error}" for graph in self.graphs if graph.error]
        problems = [f"does not compile: {one_line(text)}" for text in failed]
        if self.shortage is not None:
            problems.append(f"does not fit: {self.shortage}")
        elif self.needed_bytes > self.memory_bytes:
            problems.append(
                f"does not fit: a device has {mib(self.memory_bytes)}, of which "
                f"{mib(self.needed_bytes)} are needed; lower device_memory_utilization, kv_cache_bytes or "
                "max_num_batched_tokens"
            )
        return tuple(problems)

    @property
    def _used_part(self) -> str:
        """Say so where the model is not divided over all that was named."""
        used, there = len(self.devices), self.num_target_devices
        return "" if used == there else f"{used} of the {there} devices of "

    def text(self) -> str:
        """Return the table of graphs, the sum of the memory and the result."""
        lines = (
            [*aligned([_COLUMNS, *map(_cells, self.graphs)], numbers=range(2, len(_COLUMNS))), ""]
            if self.graphs
            else []
        )
        lines += aligned(self._memory_rows(), numbers=range(1, 2))
        result = self.problems or (
            f"compiles and fits: {len(self.graphs)} graphs for {self._used_part}{self.target}, room for "
            f"{self.num_kv_tokens:,} KV tokens",
        )
        return "\n".join([*lines, "", *result])

    def json(self) -> str:
        """Return everything as one JSON object; bytes are those of one device."""
        pool = self.pool
        return json.dumps(
            {
                "backend": self.backend,
                "target": self.target,
                "model": self.config.model,
                "dtype": self.config.dtype,
                "devices": [{"name": each.name, "memory_bytes": each.memory_bytes} for each in self.devices],
                "max_num_seqs": self.config.max_num_seqs,
                "max_num_batched_tokens": self.config.max_num_batched_tokens,
                "graphs": [dataclasses.asdict(graph) for graph in self.graphs],
                "weight_bytes": None if self.budget is None else self.weight_bytes,
                "kv_cache_bytes": self.kv_cache_bytes,
                "padding_bytes": self.padding_bytes,
                "code_bytes": self.code_bytes,
                "working_bytes": self.working_bytes,
                "needed_bytes": self.needed_bytes,
                "memory_bytes": self.memory_bytes,
                "max_model_len": None if pool is None else pool.max_model_len,
                "num_kv_tokens": self.num_kv_tokens,
                "max_concurrency": None if pool is None else pool.max_concurrency,
                "problems": list(self.problems),
                "fits": not self.problems,
            },
            indent=2,
        )

    def _memory_rows(self) -> list[tuple[str, ...]]:
        rows = []
        if self.budget is not None:
            rows.append(("weights", mib(self.weight_bytes), ""))
        if self.pool is not None and self.budget is not None:
            concurrency = f"{self.pool.max_concurrency:.1f} requests of {self.pool.max_model_len:,} tokens"
            rows += [
                ("KV cache", mib(self.kv_cache_bytes), self.budget.rule),
                ("KV tokens", f"{self.num_kv_tokens:,}", concurrency),
                ("padding", mib(self.padding_bytes), self._padding_note),
                ("programs", mib(self.code_bytes), f"{len(self.graphs)} graphs"),
                ("working memory", mib(self.working_bytes), "of the graph that needs most"),
                ("needed", mib(self.needed_bytes), "all of the above"),
            ]
        names = ", ".join(dict.fromkeys(device.name for device in self.devices))
        count = f"each of {len(self.devices)} devices" if len(self.devices) > 1 else "the device"
        rows.append(("memory", mib(self.memory_bytes), f"of {count} ({names})"))
        return list(rows)


def _cells(graph: CompiledGraph) -> tuple[str, ...]:
    if graph.error is not None:
        return (graph.name, graph.step, "failed", *[""] * (len(_COLUMNS) - 3))
    sizes = (
        graph.argument_bytes,
        graph.output_bytes,
        graph.alias_bytes,
        graph.temp_bytes,
        graph.code_bytes,
    )
    return (
        graph.name,
        graph.step,
        f"{graph.seconds:.1f}",
        *map(mib, sizes),
        str(graph.num_custom_calls),
    )
