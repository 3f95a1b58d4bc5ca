"""The TPU chips that a compile check may name, and their memory. Light: no torch, no jax."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from core_engine.plugin import ConfigError, DeviceInfo

__all__ = ["CHIPS", "Chip", "Target", "parse_target"]

#: A grid of chips as libtpu names it: "v5e:2x2", "v5p:2x2x1".
_TARGET = re.compile(r"(\w+):(\d{1,3})x(\d{1,3})(?:x(\d{1,3}))?", re.ASCII)
_MOST_CHIPS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Chip:
    """One generation of TPU."""

    #: As Google writes it.
    name: str
    #: High-bandwidth memory per chip, in GB, as https://cloud.google.com/tpu/docs/system-architecture-tpu-vm
    #: and the pages behind it state.
    stated_gb: int
    #: What of it a program may use, in MiB: the limit that libtpu 0.0.21 compiles against, and says where a
    #: program does not fit.
    usable_mib: int
    #: libtpu's name for the way to drive a chip that has two cores: "megacore" makes them one device.
    config_name: str | None = None


CHIPS = {
    "v4": Chip(name="TPU v4", stated_gb=32, usable_mib=31_488, config_name="megacore"),
    "v5e": Chip(name="TPU v5e", stated_gb=16, usable_mib=16_128),
    "v5p": Chip(name="TPU v5p", stated_gb=95, usable_mib=98_037),
    "v6e": Chip(name="TPU v6e", stated_gb=32, usable_mib=32_000),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Chips of one kind, wired as a grid, on one host."""

    #: As it was asked for.
    text: str
    kind: str
    grid: tuple[int, ...]

    @property
    def chip(self) -> Chip:
        """The kind of chip."""
        return CHIPS[self.kind]

    @property
    def num_chips(self) -> int:
        """How many chips the grid has; each is one device."""
        return math.prod(self.grid)

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Return the chips as detection would report them, with the memory that programs may use."""
        return tuple(
            DeviceInfo(
                index=index,
                name=self.chip.name,
                memory_bytes=self.chip.usable_mib << 20,
                details={"stated memory": f"{self.chip.stated_gb} GB"},
            )
            for index in range(self.num_chips)
        )


def parse_target(text: str) -> Target:
    """Read ``"v6e:1x1"``. Raises `ConfigError` with what is possible."""
    match = _TARGET.fullmatch(text.strip())
    kind = text.strip().partition(":")[0]
    if kind not in CHIPS or match is None:
        raise ConfigError(
            f"target {text!r} names no TPU: it is KIND:AxB or KIND:AxBxC, with KIND one of "
            f"{', '.join(CHIPS)} and the grid of chips in one host, e.g. v6e:1x1, v5e:2x2 or v5p:2x2x1"
        )
    grid = tuple(int(side) for side in match.groups()[1:] if side is not None)
    target = Target(text=text.strip(), kind=kind, grid=grid)
    if not 1 <= target.num_chips <= _MOST_CHIPS:
        raise ConfigError(
            f"target {text!r} has {target.num_chips} chips; a host has 1 to {_MOST_CHIPS}, and the tpu "
            "backend runs on one host"
        )
    return target
