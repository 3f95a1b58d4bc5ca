"""The targets of a compile check: grids of chips by name, and their memory."""

from __future__ import annotations

import pytest
from core_engine_tpu import plugin
from core_engine_tpu.chips import CHIPS, parse_target

from core_engine.plugin import ConfigError


@pytest.mark.parametrize(
    ("text", "grid", "count"),
    [("v5e:1x1", (1, 1), 1), ("v5e:2x2", (2, 2), 4), ("v6e:2x4", (2, 4), 8), ("v5p:2x2x1", (2, 2, 1), 4)],
)
def test_a_target_is_a_kind_and_a_grid(text: str, grid: tuple[int, ...], count: int) -> None:
    target = parse_target(text)
    assert (target.grid, target.num_chips) == (grid, count)
    assert [device.index for device in target.devices()] == list(range(count))


@pytest.mark.parametrize("text", ["v6e", "v6e:", "v6e:1", "v6e:1x", "v6e:axb", "v5:1x1", "", "v6e:1x1x1x1"])
def test_anything_else_is_refused_with_the_form_and_the_kinds(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"KIND:AxB or KIND:AxBxC, with KIND one of v4, v5e, v5p, v6e .*v6e:1x1"
    ):
        parse_target(text)


@pytest.mark.parametrize(("text", "count"), [("v5e:4x4", 16), ("v5e:0x1", 0)])
def test_a_grid_is_that_of_one_host(text: str, count: int) -> None:
    with pytest.raises(ConfigError, match=f"has {count} chips; a host has 1 to 8"):
        parse_target(text)


@pytest.mark.parametrize("kind", CHIPS)
def test_programs_may_use_nearly_all_of_the_stated_memory(kind: str) -> None:
    chip = CHIPS[kind]
    assert 0.94 * chip.stated_gb < chip.usable_mib / 1024 < 1.01 * chip.stated_gb


def test_the_hook_returns_the_chips_with_the_memory_that_programs_may_use() -> None:
    devices = plugin.compile_target("v5e:2x1")
    assert [(device.name, device.memory_bytes) for device in devices] == [("TPU v5e", 16_128 << 20)] * 2
