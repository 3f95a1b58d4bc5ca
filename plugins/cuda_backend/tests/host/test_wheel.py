"""The built wheels in a clean environment without a GPU: what they declare, and that the CPU answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clean_environment import (
    REPOSITORY,
    build_plugin,
    check_contents,
    install_wheels,
    link_installed,
    listed_backends,
    loaded_by_listing,
    make_environment,
    read_metadata,
    run_core_engine,
)

PLUGIN = REPOSITORY / "plugins" / "cuda_backend"
SMALL = ("--kv-cache-bytes", "1M", "--temperature", "0", "--max-tokens", "4", "--prompt", "The capital")
#: Without a driver the first is the reason, on a machine with a GPU the second.
REASONS = ("no NVIDIA driver: there is neither", "CUDA_VISIBLE_DEVICES='' hides every GPU")
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of core-engine-cuda; that of core-engine lies beside it."""
    return build_plugin(PLUGIN, tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def clean_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``pip install 'core-engine[cuda]'`` makes; others' packages are those that are installed here."""
    target = tmp_path_factory.mktemp("clean")
    # The extra brings no numba, whose kernels would be compiled for this environment alone.
    link_installed(make_environment(target), without=("numba", "llvmlite"))
    install_wheels(target, "core-engine[cuda]", wheels=wheel.parent)
    return target


def test_the_wheel_holds_the_package_its_types_and_the_licence(wheel: Path) -> None:
    check_contents(wheel, PLUGIN / "src" / "core_engine_cuda")


def test_the_wheel_declares_what_it_needs(wheel: Path) -> None:
    fields = read_metadata(wheel)
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["Requires-Python"] == ">=3.11"
    required = {line for line in fields.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert {"torch>=2.9", "triton>=3.5", "accelerate>=1.10"} <= required
    assert any(line.startswith("core-engine>=") for line in required)


def test_it_is_listed_as_unavailable_with_the_reason_and_cpu_is_chosen(clean_environment: Path) -> None:
    rows = listed_backends(clean_environment, **NO_GPU)
    assert (rows["cuda"]["distribution"], rows["cuda"]["state"]) == ("core-engine-cuda", "unavailable")
    assert rows["cuda"]["reason"].startswith(REASONS)
    assert rows["cuda"]["heavy_modules"] == []
    assert rows["cpu"]["selected"]


def test_doctor_tells_the_reason_and_what_is_installed(clean_environment: Path) -> None:
    result = run_core_engine(clean_environment, "doctor", **NO_GPU)
    assert result.returncode == 0, result.stderr
    assert any(f"state: unavailable: {reason}" in result.stdout for reason in REASONS)
    assert "  triton: 3." in result.stdout
    assert "  CUDA_VISIBLE_DEVICES: \n" in result.stdout


def test_the_cpu_answers_and_tells_that_cuda_was_passed_over(
    clean_environment: Path, tiny_model: Path
) -> None:
    result = run_core_engine(clean_environment, "generate", str(tiny_model), *SMALL, "--json", **NO_GPU)
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)
    assert len(row["token_ids"]) == 4
    assert any(f"passed over cuda (unavailable): {reason}" in result.stderr for reason in REASONS)


def test_asked_for_by_name_it_is_an_error_of_one_line(clean_environment: Path, tiny_model: Path) -> None:
    arguments = ("generate", str(tiny_model), *SMALL, "--backend", "cuda")
    result = run_core_engine(clean_environment, *arguments, **NO_GPU)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("core-engine: error: backend 'cuda'")
    assert any(reason in line for reason in REASONS)


def test_discovery_loads_neither_torch_nor_triton(clean_environment: Path) -> None:
    modules = ("core_engine_cuda.plugin", "torch", "triton")
    assert loaded_by_listing(clean_environment, *modules) == {"core_engine_cuda.plugin"}
