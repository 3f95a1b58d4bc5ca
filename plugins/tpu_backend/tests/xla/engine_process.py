"""Engines over several virtual devices, in a process of their own: their number is fixed when XLA starts.

As a program: reads jobs as JSON from stdin, runs them one after the other, writes the results to stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Answer", "answers_of", "run_engine", "run_in_process", "start_engine"]

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request got: ids, and per token the log-probabilities by id, prompt tokens first."""

    token_ids: list[int]
    logprobs: list[dict[str, float]]


def run_in_process(jobs: list[dict[str, Any]], *, num_devices: int) -> list[Result]:
    """Run engines with the settings of ``jobs`` in a process with ``num_devices`` virtual devices.

    A job may hold an ``adapter`` besides, for `run_engine`. A result holds what the engine answered and how
    it stands, or its error.
    """
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(num_devices)}
    paths = [str(Path(__file__).parent), *(path for path in sys.path if path)]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, __file__]
    done = subprocess.run(command, input=json.dumps(jobs), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    results: list[Result] = json.loads(done.stdout.splitlines()[-1])
    return results


def start_engine(*, model: str, backend: str = "tpu", **settings: Any) -> Any:
    """Start a small engine of few graphs; a compilation after warm-up fails."""
    from xla_engine import make_engine

    small: dict[str, Any] = {"max_num_seqs": 2, "max_num_batched_tokens": 16, "kv_cache_bytes": 1 << 20}
    if backend == "tpu":
        small["backend_options"] = {"token_buckets": "16", "request_buckets": "2"}
    return make_engine(Path(model), backend, **{**small, **settings})


def run_engine(llm: Any, adapter: str | None = None) -> list[Answer]:
    """Ask two prompts greedily, one of them longer than a step, and the second once more with ``adapter``."""
    from core_engine import LoRARequest, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=5, prompt_logprobs=5)
    prompts = [[72, 101, 108, 108, 111], [index * 7 % 256 for index in range(40)]]
    loras: list[Any] = [None, None]
    if adapter is not None:
        prompts, loras = [*prompts, prompts[-1]], [*loras, LoRARequest("adapter", adapter)]
    return [_answer(output) for output in llm.generate(prompts, params, lora=loras)]


def answers_of(result: Result) -> list[Answer]:
    """Return the answers in a result of `run_in_process`."""
    return [Answer(**answer) for answer in result["answers"]]


def _answer(output: Any) -> Answer:
    sequence = output.outputs[0]
    rows = [*(row for row in output.prompt_logprobs if row is not None), *sequence.logprobs]
    logprobs = [{str(token): entry.logprob for token, entry in row.items()} for row in rows]
    return Answer(list(sequence.token_ids), logprobs)


@cache
def _count_traces() -> list[None]:
    """Return a list that grows with each trace: not every one is a compilation that torch_xla counts."""
    import torch_xla._dynamo.dynamo_bridge as bridge

    traces: list[None] = []
    trace = bridge.extract_graph_helper

    def counted(*args: Any) -> Any:
        traces.append(None)
        return trace(*args)

    bridge.extract_graph_helper = counted
    return traces


def _run(job: dict[str, Any]) -> Result:
    import torch_xla.debug.metrics as metrics
    from xla_engine import graph_counts, runner_of

    from core_engine.errors import CoreEngineError

    traces = _count_traces()
    started, adapter = time.time(), job.pop("adapter", None)
    try:
        with start_engine(**job) as llm:
            before, num_traces = graph_counts(llm), len(traces)
            answers = [{"token_ids": a.token_ids, "logprobs": a.logprobs} for a in run_engine(llm, adapter)]
            _, _, aliases = metrics.metric_data("InputOutputAliasCount")
            table, runner = llm.engine.started.table, runner_of(llm)
            return {
                "answers": answers,
                "new_graphs": graph_counts(llm) != before,
                "new_traces": len(traces) - num_traces,
                "synced_inputs": metrics.counter_value("DynamoSyncInputExecuteTime") or 0,
                "most_aliases": max(count for when, count in aliases if when > started),
                "num_caches": len({id(layer.cache) for layer in runner.layers.values()}),
                "num_layers": len(runner.layers),
                "loaded_bytes": runner._loaded.weight_bytes,
                "device_bytes": table.weight_bytes,
                "kv_cache_bytes": table.kv_cache_bytes,
                "num_kv_tokens": table.num_kv_tokens,
            }
    except CoreEngineError as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    results = [_run(job) for job in json.load(sys.stdin)]
    print(json.dumps(results))
