"""The whole engine over the fake GPU: the CPU backend's tokens, whatever is captured."""

from __future__ import annotations

import pytest
from host_engine import PARAMS, StartEngine, runner_of, runtime_of, tokens

from core_engine import LLM


@pytest.fixture(params=["graphs", "eager"])
def llm(request: pytest.FixtureRequest, start: StartEngine) -> LLM:
    return start(enforce_eager=request.param == "eager")


def test_tokens_are_those_of_the_cpu_backend(llm: LLM, cpu: LLM) -> None:
    for params in PARAMS.values():
        assert tokens(llm, params) == tokens(cpu, params)


def test_decode_steps_are_replayed(start: StartEngine) -> None:
    llm = start()
    runtime = runtime_of(llm)
    num_graphs = len(runtime.graphs)
    before = [graph.num_replays for graph in runtime.graphs]

    tokens(llm, PARAMS["greedy"], [[1, 2, 3]])

    replays = [graph.num_replays - was for graph, was in zip(runtime.graphs, before, strict=True)]
    # The first token comes of a mixed step; each of the other 15 of one backbone, one head and one sampler.
    assert sorted(count for count in replays if count) == [15, 15, 15]
    assert len(runtime.graphs) == num_graphs


def test_eager_engines_capture_nothing(start: StartEngine) -> None:
    llm = start(enforce_eager=True)
    tokens(llm, PARAMS["greedy"])
    assert runtime_of(llm).graphs == []
    assert runner_of(llm).seams.shapes.warm_up_shapes() == ()
