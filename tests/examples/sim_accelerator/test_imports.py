"""A vendor needs the two doors of core-engine and nothing else of it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import core_engine_sim
import pytest

SOURCES = sorted(Path(core_engine_sim.__file__).parent.glob("*.py"))
DOORS = {"core_engine.plugin", "core_engine.plugin.runtime"}
ALLOWED_PACKAGES = {"core_engine_sim", "numpy", "torch", *sys.stdlib_module_names}


def imported_modules(source: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source.name} imports relatively"
            modules.add(node.module or "")
    return modules


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_module_imports_the_doors_torch_numpy_and_the_standard_library(source: Path) -> None:
    strangers = {
        module
        for module in imported_modules(source) - DOORS
        if module.partition(".")[0] not in ALLOWED_PACKAGES
    }
    assert not strangers


def test_the_light_module_loads_no_torch() -> None:
    code = "import core_engine_sim.backend, sys; assert 'torch' not in sys.modules"
    folder = Path(core_engine_sim.__file__).parents[1]
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"], check=True
    )
