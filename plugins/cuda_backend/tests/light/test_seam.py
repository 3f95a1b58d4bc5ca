"""One module calls torch.cuda, so that everything else runs and is tested without a GPU."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src" / "core_engine_cuda"
RUNTIME = "runtime.py"


def test_only_the_runtime_names_torch_cuda():
    offenders = [
        path.name
        for path in SOURCES.rglob("*.py")
        if path.name != RUNTIME and _names_torch_cuda(ast.parse(path.read_text()))
    ]

    assert offenders == []


def _names_torch_cuda(tree: ast.AST) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "cuda" and ast.unparse(node) == "torch.cuda":
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.cuda"):
            return True
        if isinstance(node, ast.Import) and any(alias.name.startswith("torch.cuda") for alias in node.names):
            return True
    return False
