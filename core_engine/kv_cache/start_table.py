"""StartTable: where the device's memory went, printed once when an engine starts."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from core_engine._text import aligned, mib
from core_engine.kv_cache.specs import KVCacheConfig
from core_engine.worker.reports import CaptureReport, MemoryBudget, ProgramGroup

__all__ = ["StartTable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StartTable:
    """The numbers of one start; bytes are those of one device."""

    weight_bytes: int
    activation_bytes: int
    kv_cache_bytes: int
    #: How the bytes for the KV cache were found.
    kv_cache_rule: str
    #: Tokens of requests of ``max_model_len`` that the pool holds at once, and how many such requests.
    num_kv_tokens: int
    max_concurrency: float
    max_model_len: int
    #: From the start of loading to ready.
    load_seconds: float
    #: What was compiled or captured, by function.
    programs: tuple[ProgramGroup, ...] = ()
    #: Over how many devices the model is divided, and which share of its parameters is, from 0 to 1.
    num_devices: int = 1
    divided_share: float = 0.0

    @classmethod
    def build(
        cls,
        budget: MemoryBudget,
        config: KVCacheConfig,
        capture: CaptureReport,
        *,
        kv_cache_bytes: int,
        load_seconds: float,
        num_devices: int = 1,
        divided_share: float = 0.0,
    ) -> StartTable:
        """Collect the numbers; ``kv_cache_bytes`` is what the runner really allocated."""
        return cls(
            weight_bytes=budget.weight_bytes,
            activation_bytes=budget.activation_bytes,
            kv_cache_bytes=kv_cache_bytes,
            kv_cache_rule=budget.rule,
            num_kv_tokens=round(config.max_concurrency * config.max_model_len),
            max_concurrency=config.max_concurrency,
            max_model_len=config.max_model_len,
            load_seconds=load_seconds,
            programs=capture.groups,
            num_devices=num_devices,
            divided_share=divided_share,
        )

    def lines(self) -> list[str]:
        """Return the table, one row a line, names left and numbers right."""
        divided = ""
        if self.num_devices > 1:
            # Cut, not rounded: 100 % says that nothing is held twice.
            percent = floor(1000 * self.divided_share) / 10
            divided = f"{percent:.1f}% of the parameters divided over {self.num_devices} devices"
        rows = [
            ("weights", mib(self.weight_bytes), divided),
            ("activations", mib(self.activation_bytes), "largest step"),
            ("KV cache", mib(self.kv_cache_bytes), self.kv_cache_rule),
            ("KV tokens", f"{self.num_kv_tokens:,}", ""),
            ("concurrency", f"{self.max_concurrency:.1f}x", f"requests of {self.max_model_len:,} tokens"),
            ("load time", f"{self.load_seconds:.1f} s", ""),
        ]
        if self.programs:
            costs = (f"{group.name} {group.num_programs} in {group.seconds:.1f} s" for group in self.programs)
            count = sum(group.num_programs for group in self.programs)
            rows.insert(-1, ("programs", f"{count:,}", ", ".join(costs)))
        return aligned(rows, numbers=(1,))
