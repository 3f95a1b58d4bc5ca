"""What ``core-engine doctor`` tells of TPUs: versions and variables, read without importing anything."""

from __future__ import annotations

from core_engine.plugin import Probe

__all__ = ["tpu_facts"]

_DISTRIBUTIONS = ("torch_xla", "libtpu", "jax", "jaxlib")
_VARIABLES = ("PJRT_DEVICE", "CPU_NUM_DEVICES", "TPU_VISIBLE_CHIPS", "XLA_FLAGS", "LIBTPU_INIT_ARGS")


def tpu_facts(probe: Probe) -> tuple[tuple[str, str], ...]:
    """Return the (fact, value) pairs that a report of a fault should contain."""
    return (
        *((name, probe.distribution_version(name) or "not installed") for name in _DISTRIBUTIONS),
        *((name, probe.environment.get(name, "(unset)")) for name in _VARIABLES),
    )
