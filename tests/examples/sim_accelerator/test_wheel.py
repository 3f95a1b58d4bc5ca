"""The built wheels in a clean environment: found, chosen by priority, by flag and by variable, and right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clean_environment import (
    REPOSITORY,
    build_plugin,
    install_wheels,
    link_installed,
    listed_backends,
    make_environment,
    run_core_engine,
)

PROMPTS = ("The capital of France is", "def fibonacci(n):")


@pytest.fixture(scope="session")
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the two wheels and what is installed here, this checkout's core-engine left out."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("clean")
    build_plugin(REPOSITORY / "examples" / "sim_accelerator", wheels)
    link_installed(make_environment(target))
    install_wheels(target, "core-engine-sim", wheels=wheels)
    return target


def selected(environment: Path, *arguments: str, **variables: str) -> str:
    (name,) = [
        n for n, row in listed_backends(environment, *arguments, **variables).items() if row["selected"]
    ]
    return name


def test_it_is_found(clean_environment: Path) -> None:
    row = listed_backends(clean_environment)["sim"]
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
        result = run_core_engine(
            clean_environment, "generate", str(smollm2), *arguments, CORE_ENGINE_BACKEND=backend
        )
        assert result.returncode == 0, result.stderr
        assert f"backend {backend}" in result.stderr
        token_ids.append([row["token_ids"] for row in json.loads(result.stdout)])
    assert token_ids[0] == token_ids[1]
    assert all(len(ids) == 24 for ids in token_ids[0])
