"""The built wheels in a clean environment: what they declare, how the backend is found, what it answers."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from clean_environment import (
    REPOSITORY,
    build_wheel,
    install_wheels,
    link_installed,
    listed_backends,
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
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of core-engine and core-engine-tpu."""
    folder = tmp_path_factory.mktemp("wheels")
    build_wheel(REPOSITORY, folder)
    build_wheel(PLUGIN, folder)
    return folder


@pytest.fixture(scope="session")
def clean_environment(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``pip install 'core-engine[tpu]'`` makes; packages of others are those that are installed here."""
    target = tmp_path_factory.mktemp("clean")
    link_installed(make_environment(target))
    install_wheels(target, "core-engine[tpu]", wheels=wheels)
    return target


@pytest.fixture(scope="session")
def wheel(wheels: Path) -> Path:
    """The wheel of core-engine-tpu."""
    (path,) = wheels.glob("core_engine_tpu-*.whl")
    return path


def test_the_wheel_holds_the_package_its_types_and_the_licence(wheel: Path) -> None:
    package = PLUGIN / "src" / "core_engine_tpu"
    modules = {path.relative_to(package.parent).as_posix() for path in package.rglob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (licence,) = [name for name in names if name.endswith("dist-info/licenses/LICENSE")]
        assert archive.read(licence) == (REPOSITORY / "LICENSE").read_bytes()
    assert {name for name in names if ".dist-info/" not in name} == {*modules, "core_engine_tpu/py.typed"}


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
    program = (
        "import sys\n"
        "from core_engine.cli.main import main\n"
        "main(['backends'])\n"
        "print('core_engine_tpu.plugin' in sys.modules, {'torch', 'torch_xla', 'jax'} & set(sys.modules))"
    )
    result = run_python(clean_environment, "-c", program, PJRT_DEVICE="CPU")
    assert result.stdout.splitlines()[-1] == "True set()", result.stderr


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
