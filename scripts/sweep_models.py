"""Checks every causal-LM type that the installed transformers maps and writes docs/reference/models.md.

Each type runs in a forked process of its own, with limits on time and memory, so that one type's crash
is one line of the table. Usage: ``python scripts/sweep_models.py [--only TYPE ...] [--jobs N]``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from core_engine.testing.divided_check import WRONG, check_divided
from core_engine.testing.model_check import TypeResult, TypeState, check_type

TABLE = Path(__file__).parent.parent / "docs" / "reference" / "models.md"
TIME_LIMIT_S = 120
MEMORY_LIMIT_BYTES = 8 << 30


def main() -> int:
    """Run the sweep; the exit code is 1 when a type gives a wrong answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="check these types and write no table")
    parser.add_argument("--num-tokens", type=int, default=32, help="greedy tokens to compare")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    types = arguments.only or list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    start = time.perf_counter()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = []
        for result, divided in pool.map(partial(check_in_child, num_tokens=arguments.num_tokens), types):
            results.append((result, divided))
            print(f"{result.model_type:26} {result.state:9} {result.detail} | {divided}", flush=True)
    counts = {state: sum(result.state is state for result, _ in results) for state in TypeState}
    print(
        ", ".join(f"{count} {state}" for state, count in counts.items()),
        f"{time.perf_counter() - start:.0f} s",
    )
    if not arguments.only:
        TABLE.write_text(render(results), encoding="utf-8")
    is_wrong = counts[TypeState.WRONG] or any(divided == WRONG for _, divided in results)
    return 1 if is_wrong else 0


def check_in_child(model_type: str, num_tokens: int) -> tuple[TypeResult, str]:
    """Run the checks of one type in a forked process; a crash or a limit becomes the state "untested".

    The text says what came of dividing a model of a type that works.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
        signal.alarm(TIME_LIMIT_S)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the process ends below
        with tempfile.TemporaryDirectory() as directory:
            result = check_type(model_type, Path(directory), num_tokens)
            divided = check_divided(Path(directory)) if result.state is TypeState.WORKS else ""
            os.write(write_end, json.dumps([result.state, result.detail, divided]).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if not answer:
        detail = f"the check did not finish (status {status})"
        return TypeResult(model_type, TypeState.UNTESTED, detail), ""
    state, detail, divided = json.loads(answer)
    return TypeResult(model_type, TypeState(state), detail), divided


def render(results: list[tuple[TypeResult, str]]) -> str:
    """Return the support table as Markdown."""
    works, refused = (
        sum(result.state is state for result, _ in results) for state in (TypeState.WORKS, TypeState.REFUSED)
    )
    lines = [
        "# Supported models",
        "",
        "<!-- Written by scripts/sweep_models.py; do not edit. -->",
        "",
        f"Checked with transformers {transformers.__version__}: of {len(results)} causal-LM types, {works}",
        f"work and {refused} are refused before their weights are read, with the reason given here. Each",
        "check makes a tiny model with random weights, loads it through the engine's own pipeline and",
        "compares the logits of every token (float32, within 1e-4, alone and packed together) and 32 greedy",
        "tokens with transformers' own forward.",
        "",
        "A type is checked with the settings that its config has by default. With others it may be refused,",
        "also with the reason: a rotary embedding that follows the longest sequence in a batch (`dynamic`;",
        "`longrope` in `phimoe`) or attention to later tokens.",
        "",
        "The last column says which share of the tiny model's parameters lies divided over two ranks, whose",
        "logits were compared in the same way, or why it cannot be divided; see",
        "[tensor parallelism](../explanation/tensor-parallel.md).",
        "",
        "| type | state | detail | over two ranks |",
        "| --- | --- | --- | --- |",
        *(
            f"| `{result.model_type}` | {result.state} | {result.detail.replace('|', '/')} | {divided} |"
            for result, divided in results
        ),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
