"""Closing the last engine of a process gives its memory back; two engines may serve in turn or in threads."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

from request_mix import draw_requests, tokens
from xla_engine import StartEngine

from core_engine import LLM

PROGRAM = """
import gc, sys, weakref
from pathlib import Path
from xla_engine import make_engine, runner_of

with make_engine(Path(sys.argv[1]), max_num_seqs=1, max_num_batched_tokens=16, max_model_len=32) as llm:
    llm.generate([[1, 2, 3]])
    runner = runner_of(llm)
    held = [weakref.ref(layer.cache) for layer in runner.layers.values()]
    held += [weakref.ref(parameter) for parameter in runner.get_model().parameters()]
    del runner
gc.collect()
print(len(held), sum(reference() is not None for reference in held))
"""


def test_a_closed_engine_holds_neither_caches_nor_weights(tiny_model: Path) -> None:
    # In a process of its own: dynamo forgets graphs only when no other engine is open.
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tiny_model)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    num_held, num_alive = map(int, finished.stdout.split())
    assert num_held > 8
    assert num_alive == 0


def test_two_engines_of_a_process_serve_in_threads_while_one_warms_up(tpu: LLM, start: StartEngine) -> None:
    prompts, params = draw_requests(12, seed=3)
    expected = tokens(tpu, prompts, params)
    found: list[list[list[int]]] = []

    def serve() -> None:
        for _ in range(4):
            found.append(tokens(tpu, prompts, params))

    server = threading.Thread(target=serve)
    server.start()
    other = start(max_num_seqs=1, max_num_batched_tokens=16, backend_options={"token_buckets": "16"})
    answers = tokens(other, prompts, params)
    server.join()
    assert found == [expected] * 4
    assert answers == expected
