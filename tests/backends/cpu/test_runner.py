"""Which attention runs, with numba and without."""

from __future__ import annotations

import subprocess
import sys

import pytest

from core_engine.attention.reference import ReferencePagedAttention
from core_engine.backends.cpu.attention import NumbaPagedAttention
from core_engine.backends.cpu.runner import make_attention

WITHOUT_NUMBA = """
import sys
from importlib.machinery import PathFinder

class Blocker(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            return None
        return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Blocker
"""


@pytest.mark.parametrize("choice", ["auto", "numba"])
def test_the_compiled_kernel_runs_where_numba_is_installed(choice: str) -> None:
    assert isinstance(make_attention(choice), NumbaPagedAttention)


def test_plain_torch_runs_when_asked_for() -> None:
    assert isinstance(make_attention("reference"), ReferencePagedAttention)


def run_without_numba(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBA + code], capture_output=True, text=True, check=True
    )
    return result.stdout.strip() + result.stderr.strip()


def test_without_numba_plain_torch_runs_and_says_how_to_get_it() -> None:
    code = """
import logging
logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
from core_engine.backends.cpu.runner import make_attention
print(make_attention("auto").name)
"""
    line, name = run_without_numba(code).splitlines()
    assert name == "reference"
    assert "pip install 'core-engine[cpu]'" in line


def test_without_numba_asking_for_it_is_an_error() -> None:
    code = """
from core_engine.errors import ConfigError
from core_engine.backends.cpu.runner import make_attention
try:
    make_attention("numba")
except ConfigError as error:
    print(error)
"""
    assert "'numba', which is not installed: pip install" in run_without_numba(code)
