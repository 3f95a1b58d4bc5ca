"""What `make demo` shows: the answer on stdout; the backend, the reason and the speed on stderr."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_model

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def demo(smollm2: Path) -> subprocess.CompletedProcess[str]:
    """The recipe of the Makefile's demo, run with this Python."""
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    question = re.findall(r"^QUESTION := (.*)$", makefile, re.M)[0]
    recipe = re.findall(r"^\t\$\(BIN\)/core-engine (chat .*)$", makefile, re.M)[0]
    arguments = [
        {"$(MODEL)": str(smollm2), '"$(QUESTION)"': question}.get(word, word) for word in recipe.split()
    ]
    return subprocess.run([sys.executable, "-m", "core_engine", *arguments], capture_output=True, text=True)


def test_demo_answers_paris_and_prints_nothing_else(demo: subprocess.CompletedProcess[str]) -> None:
    assert demo.returncode == 0, demo.stderr
    assert demo.stdout == "The capital of France is Paris.\n"


def test_demo_says_which_backend_runs_and_why(demo: subprocess.CompletedProcess[str]) -> None:
    assert re.search(r"^backend cpu \(core-engine .+\): \S", demo.stderr, re.M), demo.stderr


def test_demo_says_how_fast_it_was(demo: subprocess.CompletedProcess[str]) -> None:
    assert re.search(r"\d+ tokens in .* tokens/s", demo.stderr), demo.stderr
