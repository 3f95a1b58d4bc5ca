"""One seam holds torch_xla, so that its successor can take its place."""

from __future__ import annotations

import ast
from pathlib import Path

import core_engine_tpu
import pytest

PACKAGE = Path(core_engine_tpu.__file__).parent
MODULES = {path.stem: path for path in sorted(PACKAGE.glob("*.py"))}

#: Besides the runtime and its siblings: what calls jax, whose kernel torch_xla brings.
KERNEL = "pallas_kernel"


def packages(path: Path) -> set[str]:
    """The packages that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("module", MODULES)
def test_torch_xla_is_imported_by_the_runtime_and_its_siblings_alone(module: str) -> None:
    is_seam = module in ("runtime", KERNEL) or module.startswith("runtime_")
    assert is_seam or "torch_xla" not in packages(MODULES[module])


def test_the_seam_is_where_it_is_looked_for() -> None:
    assert all("torch_xla" in packages(MODULES[module]) for module in ("runtime", KERNEL))
