"""The documentation is current, its links lead somewhere, and its code is code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from abc import ABC
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pluggy
import pytest

from core_engine.config import EngineConfig
from core_engine.hookspecs import REQUIRED_HOOKS, BackendSpec
from core_engine.plugin import API_VERSION, DetectionState, Probe
from core_engine.plugin._markers import BACKEND_PROJECT
from core_engine.plugin.runtime import DeviceIO, ShapePolicy, WorkerBase

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for path in [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]
    if "_build" not in path.parts
)
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def page_id(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def test_generated_pages_are_current() -> None:
    script = REPOSITORY / "scripts" / "write_reference.py"
    result = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_local_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    broken = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert broken == []


def python_blocks() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in PYTHON_BLOCK.findall(page.read_text(encoding="utf-8")):
            signature_only = block.startswith("def ") and block.count("\n") == 1
            if not re.match(r"# (core_engine|examples|plugins)/", block) and not signature_only:
                yield page_id(page), block


@pytest.mark.parametrize(
    ("page", "block"), [pytest.param(*b, id=f"{b[0]}-{i}") for i, b in enumerate(python_blocks())]
)
def test_python_blocks_parse(page: str, block: str) -> None:
    ast.parse(block, filename=page)


def test_every_setting_has_a_meaning() -> None:
    table = (REPOSITORY / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    meanings = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", table, re.M))
    assert set(meanings) == {field.name for field in fields(EngineConfig)}
    assert [name for name, meaning in meanings.items() if not meaning.strip()] == []


def test_every_variable_that_the_source_names_is_documented() -> None:
    """Variables of flags are derived from the flag and stand in the command-line page."""
    source = "".join(path.read_text(encoding="utf-8") for path in REPOSITORY.glob("core_engine/**/*.py"))
    named = set(re.findall(r"\bCORE_ENGINE_[A-Z]+(?:_[A-Z]+)*\b", source)) - {"CORE_ENGINE_API"}
    pages = [REPOSITORY / "docs" / "reference" / name for name in ("environment.md", "command-line.md")]
    documented = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert {name for name in named if f"`{name}`" not in documented} == set()


def test_the_names_that_stand_for_other_engines_names_exist() -> None:
    guide = (REPOSITORY / "docs" / "how-to" / "come-from-another-engine.md").read_text(encoding="utf-8")
    ours = " ".join(line.split("|")[3] for line in guide.splitlines() if line.count("|") == 4)
    named = set(re.findall(r"`(--[a-z-]+|[A-Z_]{9,})", ours))
    reference = REPOSITORY / "docs" / "reference"
    pages = [reference / name for name in ("command-line.md", "environment.md", "cuda-options.md")]
    documented = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert len(named) > 12
    assert {name for name in named if name.replace("--no-", "--") not in documented} == set()


def test_every_variable_that_the_tpu_plugin_reads_is_documented() -> None:
    modules = REPOSITORY.glob("plugins/tpu_backend/src/**/*.py")
    source = "".join(path.read_text(encoding="utf-8") for path in modules)
    read = set(re.findall(r'environ(?:ment)?\.(?:get|setdefault)\("([A-Z_]+)"', source))
    page = (REPOSITORY / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    assert {"PJRT_DEVICE", "TPU_VISIBLE_CHIPS"} <= read
    assert {name for name in read if f"`{name}`" not in page} == set()


def test_every_variable_of_openmp_that_the_source_names_is_documented() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in REPOSITORY.glob("core_engine/**/*.py"))
    named = set(re.findall(r"\b(?:OMP|GOMP)_[A-Z]+(?:_[A-Z]+)*\b", source))
    page = (REPOSITORY / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    assert "GOMP_SPINCOUNT" in named
    assert {name for name in named if f"`{name}`" not in page} == set()


@pytest.fixture(scope="module")
def tutorial_backend() -> ModuleType:
    """The light module that the tutorial shows, as it stands there."""
    text = (REPOSITORY / "docs" / "tutorials" / "write-a-backend.md").read_text(encoding="utf-8")
    (block,) = [block for block in PYTHON_BLOCK.findall(text) if "def backend_info" in block]
    module = ModuleType("core_engine_acme.plugin")
    exec(compile(block, "write-a-backend.md", "exec"), vars(module))
    return module


def test_tutorial_backend_fulfils_the_discovery_contract(tutorial_backend: ModuleType) -> None:
    manager = pluggy.PluginManager(BACKEND_PROJECT)
    manager.add_hookspecs(BackendSpec)
    manager.register(tutorial_backend)
    manager.check_pending()
    assert all(getattr(manager.hook, name).get_hookimpls() for name in REQUIRED_HOOKS)
    assert tutorial_backend.CORE_ENGINE_API == API_VERSION


ACME = REPOSITORY / "examples" / "acme_backend"


@pytest.mark.parametrize(
    "name", ["pyproject.toml", *(f"src/core_engine_acme/{m}.py" for m in ("plugin", "worker", "runner"))]
)
def test_tutorial_shows_the_smallest_backend_whole(name: str) -> None:
    tutorial = (REPOSITORY / "docs" / "tutorials" / "write-a-backend.md").read_text(encoding="utf-8")
    assert f"\n{(ACME / name).read_text(encoding='utf-8')}```" in tutorial


@pytest.mark.parametrize(
    ("seam", "file"),
    [
        (WorkerBase, "examples/sim_accelerator/src/core_engine_sim/worker.py"),
        (DeviceIO, "examples/sim_accelerator/src/core_engine_sim/device_io.py"),
        (ShapePolicy, "core_engine/worker/bucket_shapes.py"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_tutorial_lists_every_method_that_a_seam_demands(seam: type[ABC], file: str) -> None:
    tutorial = (REPOSITORY / "docs" / "tutorials" / "write-a-backend.md").read_text(encoding="utf-8")
    start = f"```python\n# {file}\n"
    shown = set(re.findall(r"def (\w+)\(", tutorial.partition(start)[2].partition("```")[0]))
    assert shown == set(seam.__abstractmethods__)


def test_tutorial_backend_detects_its_device_nodes(tutorial_backend: ModuleType, tmp_path: Path) -> None:
    assert tutorial_backend.detect(Probe({}, tmp_path)).state is DetectionState.UNAVAILABLE
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "acme0").touch()
    found = tutorial_backend.detect(Probe({}, tmp_path))
    assert found.state is DetectionState.AVAILABLE
    assert [device.index for device in found.devices] == [0]
