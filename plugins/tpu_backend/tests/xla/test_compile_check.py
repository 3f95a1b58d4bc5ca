"""The engine's own graphs, compiled by libtpu for TPUs that are not there, without weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from xla_engine import OPTIONS, SETTINGS

from core_engine import LLM

NUM_LAYERS = 4
#: Targets, and over how many of their chips the model is divided.
CHECKS = [("v5e:1x1", 1), ("v6e:1x1", 1), ("v5e:2x1", 2)]

Found = dict[str, Any]


@pytest.fixture(scope="session")
def config_only(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model's config and nothing else: no weights, no tokenizer."""
    folder = tmp_path_factory.mktemp("config-only")
    (folder / "config.json").write_text((tiny_model / "config.json").read_text())
    return folder


def compile_check(model: Path, target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with the settings that the other tests run engines with."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    settings = [
        text for name, value in SETTINGS.items() for text in (f"--{name.replace('_', '-')}", str(value))
    ]
    options = [text for pair in OPTIONS.items() for text in ("--backend-option", "=".join(pair))]
    command = ["-m", "core_engine", "compile-check", str(model), "--backend", "tpu", "--target", target]
    return subprocess.run(
        [sys.executable, *command, *settings, *options, *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )


def attends(graph: Found) -> bool:
    """Say whether a graph reads and writes the KV cache: backbones do, but for the profile run's."""
    return graph["name"] == "backbone" and not graph["step"].endswith("no cache")


def graph_working_bytes(graph: Found) -> int:
    """Return what a graph needs besides its arguments."""
    needed: int = graph["temp_bytes"] + graph["output_bytes"] - graph["alias_bytes"]
    return needed


@pytest.fixture(scope="session", params=CHECKS, ids=[target for target, _ in CHECKS])
def checked(request: pytest.FixtureRequest, config_only: Path) -> tuple[Found, int]:
    """What one check has found, and over how many chips."""
    target, num_chips = request.param
    done = compile_check(
        config_only, target, "--json", "--kv-cache-bytes", "64M", "--tensor-parallel-size", str(num_chips)
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return json.loads(done.stdout), num_chips


def test_case_17_every_bucket_compiles(checked: tuple[Found, int]) -> None:
    found, _ = checked
    assert found["problems"] == []
    assert all(graph["error"] is None and graph["code_bytes"] > 0 for graph in found["graphs"])
    backbones = [graph["step"] for graph in found["graphs"] if graph["name"] == "backbone"]
    assert backbones == [
        "32 tokens, 4 requests, no cache",
        "1 token, 1 request",
        "2 tokens, 2 requests",
        "4 tokens, 4 requests",
        "16 tokens, 4 requests",
        "32 tokens, 4 requests",
    ]


def test_case_17_there_is_one_custom_call_per_layer(checked: tuple[Found, int]) -> None:
    found, _ = checked
    for graph in found["graphs"]:
        assert graph["num_custom_calls"] == (NUM_LAYERS if attends(graph) else 0)


def test_case_17_the_kv_cache_is_updated_in_place(checked: tuple[Found, int]) -> None:
    found, _ = checked
    for graph in found["graphs"]:
        expected = found["kv_cache_bytes"] if attends(graph) else 0
        assert graph["alias_bytes"] == expected


def test_the_graphs_are_those_of_a_start(checked: tuple[Found, int], tpu: LLM) -> None:
    found, _ = checked
    counts = {group.name: group.num_programs for group in tpu.engine.started.table.programs}
    assert {name: [graph["name"] for graph in found["graphs"]].count(name) for name in counts} == counts


def test_the_weights_of_a_chip_are_counted(checked: tuple[Found, int], tpu: LLM) -> None:
    found, num_chips = checked
    whole = tpu.engine.started.table.weight_bytes
    assert found["weight_bytes"] == whole if num_chips == 1 else whole / 2 < found["weight_bytes"] < whole
    largest = max(graph["argument_bytes"] for graph in found["graphs"])
    assert largest > found["kv_cache_bytes"]


def test_without_a_budget_the_cache_takes_the_chip(config_only: Path) -> None:
    # Of several chips one is used unless the model is divided.
    done = compile_check(
        config_only, "v6e:2x1", "--json", "--max-num-seqs", "1", "--backend-option", "token_buckets=16"
    )
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert len(found["devices"]) == 1
    usable = int(32_000 * (1 << 20) * 0.9)
    profiled = max(graph_working_bytes(graph) for graph in found["graphs"][:4])
    used = found["weight_bytes"] + found["kv_cache_bytes"] + profiled
    assert usable - (1 << 20) < used <= usable
    assert found["needed_bytes"] < found["memory_bytes"]


def test_too_little_memory_for_one_sequence_is_a_result(config_only: Path) -> None:
    done = compile_check(config_only, "v5e:1x1", "--kv-cache-bytes", "8K")
    assert done.returncode == 1
    assert "does not fit: max_model_len 96 needs" in done.stdout


def test_a_model_that_cannot_be_divided_is_refused(config_only: Path) -> None:
    done = compile_check(config_only, "v5e:2x2", "--tensor-parallel-size", "4")
    assert done.returncode == 2
    assert "tensor_parallel_size 4 does not divide" in done.stderr.splitlines()[-1]
