"""What the built-in backend says of itself before anything heavy is imported."""

from __future__ import annotations

import os
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


@pytest.mark.parametrize("threads", [0, -1, 99_999_999])
def test_an_impossible_number_of_threads_is_refused(threads: int) -> None:
    with pytest.raises(ConfigError, match=f"threads is {threads}; it must be between 1 and"):
        plugin.check_config({"threads": threads, "attention": "auto"})


def test_the_doctor_tells_cores_memory_and_the_variables_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n")
    facts = dict(plugin.doctor_rows(Probe(environment={"OMP_NUM_THREADS": "3"}, root=tmp_path)))
    assert facts["cores"] == "2 of 8 usable"
    assert facts["memory"] == "1.0 GiB free of 4.0 GiB"
    assert (facts["OMP_NUM_THREADS"], facts["NUMBA_NUM_THREADS"]) == ("3", "(unset)")


def test_the_module_is_light() -> None:
    code = "import sys, core_engine.backends.cpu.plugin; print({'torch', 'numba'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
