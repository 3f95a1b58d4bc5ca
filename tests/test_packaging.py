"""The built wheel, not the checkout: what it holds, and that it works where torch is not installed."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from clean_environment import (
    REPOSITORY,
    build_wheel,
    check_contents,
    install_wheels,
    make_environment,
    read_metadata,
    run_core_engine,
    run_python,
)
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import core_engine

#: What the light part of core-engine needs; torch and transformers are left out on purpose.
LIGHT_DEPENDENCIES = ("pluggy", "importlib-metadata", "msgspec", "numpy")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout with the build backend that is installed here."""
    return build_wheel(REPOSITORY, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def clean_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its light dependencies, and nothing else."""
    target = tmp_path_factory.mktemp("clean")
    site = make_environment(target)
    install_wheels(target, str(wheel))
    for name in _with_requirements(LIGHT_DEPENDENCIES):
        _link_distribution(name, site)
    return target


def _with_requirements(names: Iterable[str]) -> set[str]:
    """Add what the named distributions require here, and what those require."""
    closed: set[str] = set()
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in closed:
            closed.add(name)
            for line in metadata.requires(name) or ():
                requirement = Requirement(line)
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    waiting.append(requirement.name)
    return closed


def _link_distribution(name: str, site: Path) -> None:
    """Make an installed distribution visible in another environment, without a package index."""
    distribution = metadata.distribution(name)
    tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        (site / top).symlink_to(Path(str(distribution.locate_file(top))))


def test_wheel_holds_the_package_its_types_and_the_licence(wheel: Path) -> None:
    check_contents(wheel, REPOSITORY / "core_engine")


def test_metadata_states_version_licence_and_python(wheel: Path) -> None:
    fields = read_metadata(wheel)
    assert fields["Name"] == "core-engine"
    assert fields["Version"] == core_engine.__version__
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["Requires-Python"] == ">=3.11"


def test_requirements_have_lower_bounds_and_no_upper_ones(wheel: Path) -> None:
    required = [line for line in read_metadata(wheel).get_all("Requires-Dist", []) if "extra ==" not in line]
    assert "torch>=2.9" in required
    for line in required:
        assert re.fullmatch(r"[A-Za-z0-9._-]+>=[0-9.]+", line), line


def test_extras_are_those_that_the_documentation_lists(wheel: Path) -> None:
    extras = set(read_metadata(wheel).get_all("Provides-Extra", []))
    assert extras == {"cpu", "cuda", "dev", "docs", "gguf", "serve", "testing", "tpu"}
    guide = (REPOSITORY / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    table = guide.partition("## Extras")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", table)) == extras


def test_the_lowest_transformers_stands_in_one_place() -> None:
    """The Makefile's lane for the lowest release takes it from pyproject.toml."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (bound,) = [line for line in project["dependencies"] if line.startswith("transformers>=")]
    version = bound.removeprefix("transformers>=")
    for file in ("Makefile", ".ci/run", "scripts/shared_environment.py"):
        text = (REPOSITORY / file).read_text(encoding="utf-8")
        assert not re.search(rf"transformers\W+{re.escape(version)}\b", text), file


def test_import_works_without_torch(clean_environment: Path) -> None:
    result = run_python(
        clean_environment, "-c", "import core_engine; print(core_engine.__version__, core_engine.__file__)"
    )
    assert result.returncode == 0, result.stderr
    version, file = result.stdout.split()
    assert version == core_engine.__version__
    assert str(clean_environment) in file


def test_vendors_light_door_works_without_torch(clean_environment: Path) -> None:
    result = run_python(clean_environment, "-c", "from core_engine.plugin import *; print(API_VERSION)")
    assert result.returncode == 0, result.stderr


def test_help_lists_the_commands_without_torch(clean_environment: Path) -> None:
    result = run_core_engine(clean_environment, "--help")
    assert result.returncode == 0, result.stderr
    for command in ("generate", "chat", "bench", "backends", "doctor"):
        assert command in result.stdout


def test_version_is_printed_by_the_command_and_by_the_module(clean_environment: Path) -> None:
    by_command = run_core_engine(clean_environment, "--version")
    by_module = run_python(clean_environment, "-m", "core_engine", "--version")
    assert by_command.stdout == by_module.stdout == f"core-engine {core_engine.__version__}\n"


def test_backends_lists_cpu_without_torch(clean_environment: Path) -> None:
    result = run_python(clean_environment, "-m", "core_engine", "backends", "--json")
    rows = json.loads(result.stdout)
    assert [row["name"] for row in rows] == ["cpu"], result.stderr
    assert {
        "name",
        "distribution",
        "version",
        "api",
        "state",
        "reason",
        "priority",
        "devices",
        "selected",
    } <= set(rows[0])
