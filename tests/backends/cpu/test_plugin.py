"""What the built-in backend says of itself before anything heavy is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from core_engine.backends.cpu import plugin
from core_engine.config import EngineConfig
from core_engine.errors import ConfigError
from core_engine.plugin import API_VERSION, Capabilities, DetectionState, DeviceInfo, Probe

CPUINFO = "processor : 0\nmodel name : Acme 9000\nflags : fpu avx2 {}\n\nprocessor : 1\nmodel name : other\n"


def machine(root: Path, cpuinfo: str) -> Probe:
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(cpuinfo)
    (root / "proc/meminfo").write_text("MemTotal: 4096 kB\n")
    return Probe(environment={}, root=root)


def capabilities(probe: Probe) -> Capabilities:
    return plugin.capabilities(plugin.detect(probe).devices, EngineConfig(model="m"))


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


@pytest.mark.parametrize(("cores", "most"), [(2, 8), (32, 32)])
def test_a_model_may_be_divided_over_the_cores_and_over_some_ranks_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, most: int
) -> None:
    monkeypatch.setattr(plugin, "usable_cores", lambda probe: cores)
    assert capabilities(machine(tmp_path, CPUINFO)).max_tensor_parallel_size == most


def test_ranks_share_the_one_device(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin, "usable_cores", lambda probe: 2)
    plans = plugin.plan_workers(EngineConfig(model="m", tensor_parallel_size=2))
    assert [(plan.rank, plan.device_indices) for plan in plans] == [(0, (0,)), (1, (0,))]
    assert not caplog.records


def test_more_ranks_than_cores_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin, "usable_cores", lambda probe: 2)
    plugin.plan_workers(EngineConfig(model="m", tensor_parallel_size=4))
    assert "4 ranks share 2 cores" in caplog.text


def test_adapters_are_for_one_rank(tmp_path: Path) -> None:
    devices = plugin.detect(machine(tmp_path, CPUINFO)).devices
    offered = [
        plugin.capabilities(devices, EngineConfig(model="m", tensor_parallel_size=size)).lora
        for size in (1, 2)
    ]
    assert offered == [True, False]


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
