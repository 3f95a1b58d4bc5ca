"""What the built-in backend says of itself before anything heavy is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from core_engine.backends.cpu import plugin
from core_engine.config import EngineConfig
from core_engine.errors import ConfigError, UnsupportedFeature
from core_engine.plugin import API_VERSION, Capabilities, DetectionState, DeviceInfo, Probe

CPUINFO = "processor : 0\nmodel name : Acme 9000\nflags : fpu avx2 {}\n\nprocessor : 1\nmodel name : other\n"


def machine(root: Path, cpuinfo: str) -> Probe:
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(cpuinfo)
    (root / "proc/meminfo").write_text("MemTotal: 4096 kB\n")
    return Probe(environment={}, root=root)


def capabilities(probe: Probe) -> Capabilities:
    return plugin.capabilities(plugin.detect(probe).devices)


def test_it_is_written_for_this_cores_api() -> None:
    assert plugin.CORE_ENGINE_API == API_VERSION


def test_it_has_the_lowest_priority() -> None:
    info = plugin.backend_info()
    assert (info.name, info.priority) == ("cpu", 0)


def test_it_is_always_available_with_one_device(tmp_path: Path) -> None:
    detection = plugin.detect(machine(tmp_path, CPUINFO.format("avx512_bf16")))
    assert detection.state is DetectionState.AVAILABLE
    assert detection.devices == (
        DeviceInfo(index=0, name="Acme 9000", memory_bytes=4 << 20, details={"bfloat16": "avx512_bf16"}),
    )


def test_it_is_available_where_the_system_tells_nothing(tmp_path: Path) -> None:
    detection = plugin.detect(Probe(environment={}, root=tmp_path))
    assert detection.state is DetectionState.AVAILABLE
    assert len(detection.devices) == 1


@pytest.mark.parametrize(("flag", "best"), [("amx_bf16", "bfloat16"), ("avx512f", "float32")])
def test_the_best_dtype_is_one_the_processor_multiplies(tmp_path: Path, flag: str, best: str) -> None:
    dtypes = capabilities(machine(tmp_path, CPUINFO.format(flag))).dtypes
    assert dtypes[0] == best
    assert set(dtypes) == {"bfloat16", "float16", "float32"}


def test_tensor_parallel_is_refused_with_what_is_possible() -> None:
    with pytest.raises(UnsupportedFeature, match=r"tensor_parallel_size 2 .* 'cpu'; use 1"):
        plugin.plan_workers(EngineConfig(model="m", tensor_parallel_size=2))


def test_one_worker_owns_the_one_device() -> None:
    (plan,) = plugin.plan_workers(EngineConfig(model="m"))
    assert (plan.rank, plan.device_indices) == (0, (0,))


def test_threads_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="threads is 0; it must be at least 1"):
        plugin.check_config({"threads": 0, "attention": "auto"})


def test_the_module_is_light() -> None:
    code = "import sys, core_engine.backends.cpu.plugin; print({'torch', 'numba'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
