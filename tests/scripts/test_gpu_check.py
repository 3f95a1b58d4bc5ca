"""`scripts/gpu_check` ends with one line of JSON, whatever happens."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest
from model_shapes import SHAPES

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check"


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit status and the report of the last line."""
    result = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)
    return result.returncode, json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def script() -> Any:
    """The script as a module."""
    loader = SourceFileLoader("gpu_check", str(SCRIPT))
    spec = spec_from_loader("gpu_check", loader)
    assert spec is not None
    module = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, report = run()
    assert code == 1
    assert report["passed"] is False
    assert report["error"].startswith("no GPU: torch ")


def test_on_the_cpu_the_same_parts_run_with_a_tiny_shape() -> None:
    code, report = run("--backend", "cpu", "--shape", "tiny")
    assert report["error"] is None
    assert code == 0
    assert report["passed"] is True
    assert report["backend"] == "cpu"
    device = report["parts"]["device"]["results"][0]
    # The checkout is an installation to what runs here, though none was made.
    assert device["versions"]["core-engine"] == device["versions"]["core-engine-cuda"] == "0.1.0.dev0"
    assert report["limits"]["gb_per_s"] == device["copy_gb_per_s"]
    start, *rates = report["parts"]["tiny"]["results"]
    assert start["measurement"] == "start"
    measured = [(rate["measurement"], rate.get("batch")) for rate in rates]
    assert measured == [("decode", 1), ("decode", 2), ("prefill", None), ("decode", 2)]
    assert all(rate["tokens_per_s"] > 0 and 0 < rate["compute_share"] < 1 for rate in rates)


def test_without_time_parts_are_entries_that_say_so() -> None:
    code, report = run("--backend", "cpu", "--shape", "tiny", "--seconds", "0.01")
    assert code == 1
    assert report["parts"]["device"]["error"] == report["error"] == "no time was left"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--shape", "llama"), "'llama' (choose from"), (("--wheels", "nowhere"), "'nowhere' is no folder")],
)
def test_a_wrong_argument_ends_it_before_anything_runs(arguments: tuple[str, ...], message: str) -> None:
    result = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr.splitlines()[-1]


def test_the_shapes_are_those_that_can_be_measured(script: Any) -> None:
    assert set(script._KNOWN_SHAPES) == set(SHAPES)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_part_and_is_told(number: signal.Signals) -> None:
    command = [sys.executable, str(SCRIPT), "--backend", "cpu", "--shape", "tiny"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stdout is not None
    assert process.stderr.readline().startswith("gpu_check: device")
    process.send_signal(number)
    report = json.loads(process.stdout.read())
    assert process.wait() == 1
    assert report["error"] == "it was interrupted"
    assert report["parts"]["device"]["error"] is not None
    # Its pipes end with the last process that holds them.
    process.stderr.read()
    process.stderr.close()
    process.stdout.close()


def test_outcomes_are_read_from_pytests_lines(script: Any) -> None:
    part: dict[str, Any] = {"results": [], "error": None}
    for line in (
        "collecting ... collected 3 items\n",
        "tests/gpu/test_engine.py::test_tokens[a b] PASSED                  [  4%]\n",
        "tests/gpu/test_engine.py::test_other FAILED [  8%]\n",
        "tests/gpu/test_engine.py::test_real SKIPPED (SmolLM2 is not here) [ 12%]\n",
        "FAILED tests/gpu/test_engine.py::test_other - assert 1 == 2\n",
    ):
        script._test_line(part, line)
    script._judge(part)
    (counts,) = part["results"]
    assert counts.pop("not_passed") == ["tests/gpu/test_engine.py::test_other"]
    assert counts == {"passed": 1, "failed": 1, "error": 0, "skipped": 1}


def test_that_no_test_passed_is_an_error(script: Any) -> None:
    part: dict[str, Any] = {"results": [{"test": "a::b", "outcome": "skipped"}], "error": None}
    script._judge(part)
    assert part["error"] == "no test passed"
