"""The built wheels in a clean environment: what they declare, how the backend is found, what it answers."""

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
    run_python,
)

PLUGIN = REPOSITORY / "plugins" / "tpu_backend"
FEW_GRAPHS = [
    *("--dtype", "float32", "--max-num-seqs", "1", "--max-model-len", "64", "--kv-cache-bytes", "1M"),
    *("--max-num-batched-tokens", "16"),
]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of core-engine-tpu; that of core-engine lies beside it."""
    return build_plugin(PLUGIN, tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def clean_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``pip install 'core-engine[tpu]'`` makes; packages of others are those that are installed here."""
    target = tmp_path_factory.mktemp("clean")
    link_installed(make_environment(target))
    install_wheels(target, "core-engine[tpu]", wheels=wheel.parent)
    return target


def test_the_wheel_holds_the_package_its_types_and_the_licence(wheel: Path) -> None:
    check_contents(wheel, PLUGIN / "src" / "core_engine_tpu")


def test_the_wheel_declares_what_it_needs(wheel: Path) -> None:
    fields = read_metadata(wheel)
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["Requires-Python"] == "<3.13,>=3.11"
    required = {line for line in fields.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert {"torch<2.10,>=2.9", "torch-xla==2.9.0"} <= required
    assert any(line.startswith("core-engine>=") for line in required)
    assert set(fields.get_all("Provides-Extra", [])) == {"tpu", "compile-check", "testing"}


def test_it_is_found_by_its_entry_point(clean_environment: Path) -> None:
    program = (
        "from importlib.metadata import distribution\n"
        "for entry in distribution('core-engine-tpu').entry_points:\n"
        "    print(entry.group, entry.name, entry.value)"
    )
    result = run_python(clean_environment, "-c", program)
    assert "core_engine.backends tpu core_engine_tpu.plugin\n" in result.stdout, result.stderr


def test_on_the_host_it_is_chosen_by_name_only(clean_environment: Path) -> None:
    rows = listed_backends(clean_environment, PJRT_DEVICE="CPU")
    assert (rows["tpu"]["distribution"], rows["tpu"]["state"]) == ("core-engine-tpu", "by-name-only")
    assert rows["tpu"]["heavy_modules"] == []
    assert [name for name, row in rows.items() if row["selected"]] == ["cpu"]
    by_name = listed_backends(clean_environment, PJRT_DEVICE="CPU", CORE_ENGINE_BACKEND="tpu")
    assert by_name["tpu"]["selected"]


def test_without_a_tpu_it_tells_the_reason_and_cpu_is_chosen(clean_environment: Path) -> None:
    rows = listed_backends(clean_environment)
    assert rows["tpu"]["state"] == "unavailable"
    assert rows["tpu"]["reason"] == "no TPU on the PCI bus; PJRT_DEVICE=CPU runs its graphs on the host"
    assert rows["cpu"]["selected"]


def test_case_15_discovery_loads_neither_torch_xla_nor_jax(clean_environment: Path) -> None:
    modules = ("core_engine_tpu.plugin", "torch", "torch_xla", "jax")
    assert loaded_by_listing(clean_environment, *modules, PJRT_DEVICE="CPU") == {"core_engine_tpu.plugin"}


def test_it_answers_with_the_cpu_backends_tokens(clean_environment: Path, tiny_model: Path) -> None:
    arguments = [
        "--prompt",
        "The capital",
        "--temperature",
        "0",
        "--max-tokens",
        "12",
        "--ignore-eos",
        "--json",
    ]
    token_ids = []
    for backend, options in (("tpu", ["--backend-option", "recompilation=error"]), ("cpu", [])):
        result = run_core_engine(
            clean_environment,
            *("generate", str(tiny_model), *arguments, *FEW_GRAPHS, *options),
            CORE_ENGINE_BACKEND=backend,
            PJRT_DEVICE="CPU",
        )
        assert result.returncode == 0, result.stderr
        assert f"backend {backend}" in result.stderr
        token_ids.append([row["token_ids"] for row in json.loads(result.stdout)])
    assert token_ids[0] == token_ids[1]
    assert len(token_ids[0][0]) == 12
