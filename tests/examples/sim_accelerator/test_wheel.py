"""The built wheels in a clean environment: found, chosen by priority, by flag and by variable, and right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PROMPTS = ("The capital of France is", "def fibonacci(n):")


def build(project: Path, target: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), "."]
    result = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="session")
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the two wheels and what is installed here, this checkout's core-engine left out."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("clean")
    build(REPOSITORY, wheels)
    build(REPOSITORY / "examples" / "sim_accelerator", wheels)
    venv.create(target, with_pip=False)
    python = str(target / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    result = subprocess.run([*command, *map(str, wheels.glob("*.whl"))], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (site,) = target.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("core_engine", "_editable")) and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    return target


def core_engine(environment: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command, away from the checkout and from the variables of this process."""
    kept = {
        key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR", "OMP_NUM_THREADS") if key in os.environ
    }
    return subprocess.run(
        [str(environment / "bin" / "core-engine"), *arguments],
        cwd=environment,
        env={**kept, "HF_HUB_OFFLINE": "1", **variables},
        capture_output=True,
        text=True,
    )


def listed(environment: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    """What ``core-engine backends --json`` says, by name."""
    result = core_engine(environment, "backends", "--json", *arguments, **variables)
    assert result.returncode == 0, result.stderr
    return {row["name"]: row for row in json.loads(result.stdout)}


def selected(environment: Path, *arguments: str, **variables: str) -> str:
    (name,) = [n for n, row in listed(environment, *arguments, **variables).items() if row["selected"]]
    return name


def test_it_is_found(clean_environment: Path) -> None:
    row = listed(clean_environment)["sim"]
    assert (row["distribution"], row["state"], row["priority"]) == ("core-engine-sim", "available", 50)
    assert len(row["devices"]) == 2
    assert row["heavy_modules"] == []


def test_it_is_chosen_by_priority(clean_environment: Path) -> None:
    assert selected(clean_environment) == "sim"
    assert selected(clean_environment, CORE_ENGINE_SIM_DEVICES="0") == "cpu"


def test_the_variable_chooses(clean_environment: Path) -> None:
    assert selected(clean_environment, CORE_ENGINE_BACKEND="cpu") == "cpu"
    assert selected(clean_environment, CORE_ENGINE_BACKEND="sim") == "sim"


def test_the_flag_chooses_and_wins_over_the_variable(clean_environment: Path) -> None:
    assert selected(clean_environment, "--backend", "sim", CORE_ENGINE_BACKEND="cpu") == "sim"


@pytest.mark.real_model
def test_it_answers_with_the_cpu_backends_tokens(clean_environment: Path, smollm2: Path) -> None:
    """``strict_shapes`` is the default, so a compilation after warm-up would end the run with an error."""
    arguments = [str(part) for prompt in PROMPTS for part in ("--prompt", prompt)]
    arguments += ["--json", "--dtype", "float32", "--temperature", "0", "--max-tokens", "24"]
    arguments += ["--max-model-len", "128", "--max-num-seqs", "4", "--max-num-batched-tokens", "32"]
    token_ids = []
    for backend in ("sim", "cpu"):
        result = core_engine(
            clean_environment, "generate", str(smollm2), *arguments, CORE_ENGINE_BACKEND=backend
        )
        assert result.returncode == 0, result.stderr
        assert f"backend {backend}" in result.stderr
        token_ids.append([row["token_ids"] for row in json.loads(result.stdout)])
    assert token_ids[0] == token_ids[1]
    assert all(len(ids) == 24 for ids in token_ids[0])
