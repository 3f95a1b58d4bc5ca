"""core-engine-tpu where it cannot work, beside a later torch: it is told and costs nothing (cases 14, 15)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_distribution import BACKENDS, add_distribution, show_distribution

SOURCES = Path(__file__).resolve().parents[2] / "plugins" / "tpu_backend" / "src"
REASON = "needs torch 2.9, the only one that torch_xla 2.9 can be loaded into; torch here is 2."
SMALL = ("--kv-cache-bytes", "1M", "--temperature", "0", "--max-tokens", "4", "--prompt", "The capital")


@pytest.fixture(autouse=True)
def plugin_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the plugin, and empty modules in place of what it must not import."""
    add_distribution(
        tmp_path,
        "core-engine-tpu",
        {BACKENDS: {"tpu": "core_engine_tpu.plugin"}},
        modules={"torch_xla": "", "jax": ""},
    )
    for variable in ("CORE_ENGINE_BACKEND", "CORE_ENGINE_PLUGINS", "PJRT_DEVICE"):
        monkeypatch.delenv(variable, raising=False)
    show_distribution(tmp_path, SOURCES, monkeypatch)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def core_engine(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "core_engine", *arguments)


def test_case_14_it_is_listed_as_unavailable_with_the_reason() -> None:
    result = core_engine("backends", "--json")
    assert result.returncode == 0, result.stderr
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert (rows["tpu"]["distribution"], rows["tpu"]["state"]) == ("core-engine-tpu", "unavailable")
    assert rows["tpu"]["reason"].startswith(REASON)
    assert rows["cpu"]["selected"]


def test_case_14_doctor_tells_it_as_well() -> None:
    result = core_engine("doctor")
    assert result.returncode == 0, result.stderr
    assert f"state: unavailable: {REASON}" in result.stdout
    assert "  libtpu: not installed\n" in result.stdout
    assert "  PJRT_DEVICE: (unset)\n" in result.stdout


def test_case_14_the_cpu_answers_and_tells_that_it_was_passed_over(tiny_model: Path) -> None:
    result = core_engine("generate", str(tiny_model), *SMALL, "--json")
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)
    assert len(row["token_ids"]) == 4
    assert f"passed over tpu (unavailable): {REASON}" in result.stderr


def test_case_14_asked_for_by_name_it_is_an_error_of_one_line(tiny_model: Path) -> None:
    result = core_engine("generate", str(tiny_model), *SMALL, "--backend", "tpu")
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("core-engine: error: backend 'tpu'")
    assert REASON in line


@pytest.mark.parametrize(
    ("does", "loads_plugin"),
    [
        ("import core_engine", False),
        ("from core_engine.cli.main import main; main(['backends'])", True),
    ],
    ids=["import", "discovery"],
)
def test_case_15_neither_torch_xla_nor_jax_is_loaded(does: str, loads_plugin: bool) -> None:
    watched = ("torch", "torch_xla", "jax", "core_engine_tpu.plugin")
    result = python("-c", f"import sys\n{does}\nprint([n for n in {watched!r} if n in sys.modules])")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == str(["core_engine_tpu.plugin"] * loads_plugin)
