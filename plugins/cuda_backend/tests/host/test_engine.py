"""The whole engine over the fake GPU: the CPU backend's tokens, whatever is captured."""

from __future__ import annotations

from pathlib import Path

import pytest
from draft_oracle import draft_all_right, draft_at_random
from engine.draft_answers import answers, drafted_answers
from host_engine import PARAMS, StartEngine, make_engine, runner_of, runtime_of, tokens
from tiny_adapter import make_adapter
from tiny_chat_model import make_tiny_chat_model

from core_engine import LLM, LoRARequest, SamplingParams
from core_engine.testing.oracle import Oracle


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
    # The first token comes from a mixed step, each of the other 15 from one backbone, one head, one sampler.
    assert sorted(count for count in replays if count) == [15, 15, 15]
    assert len(runtime.graphs) == num_graphs


def test_eager_engines_capture_nothing(start: StartEngine) -> None:
    llm = start(enforce_eager=True)
    tokens(llm, PARAMS["greedy"])
    assert runtime_of(llm).graphs == []
    assert runner_of(llm).seams.shapes.warm_up_shapes() == ()


def test_padded_and_mixed_steps_answer_alike(llm: LLM, cpu: LLM) -> None:
    # Log-probabilities, every part of the sampler, several sequences of one prompt, prompts over steps.
    assert answers(llm) == answers(cpu)


def test_larger_batches_than_were_captured_run_as_they_are(start: StartEngine, cpu: LLM) -> None:
    llm = start(backend_options={"graph_sizes": "1,2"})
    assert tokens(llm, PARAMS["greedy"]) == tokens(cpu, PARAMS["greedy"])
    assert {shape.num_reqs for shape in runner_of(llm).seams.shapes.warm_up_shapes()} == {1, 2}


def test_log_probabilities_are_those_of_the_cpu_backend(llm: LLM, cpu: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    (ours,), (theirs,) = (engine.generate([[1, 2, 3, 4]], params) for engine in (llm, cpu))
    for mine, other in zip(ours.outputs[0].logprobs or (), theirs.outputs[0].logprobs or (), strict=True):
        assert list(mine) == list(other)
        assert [entry.logprob for entry in mine.values()] == pytest.approx(
            [entry.logprob for entry in other.values()], abs=1e-4
        )
    assert ours.prompt_logprobs is not None
    assert theirs.prompt_logprobs is not None
    assert [row and list(row) for row in ours.prompt_logprobs] == [
        row and list(row) for row in theirs.prompt_logprobs
    ]


@pytest.mark.parametrize("plan", [draft_all_right, draft_at_random(2)], ids=["right", "at random"])
def test_drafts_change_no_answer(start: StartEngine, cpu: LLM, plan: object) -> None:
    llm = start(num_draft_tokens=2)
    assert drafted_answers(llm, answers(cpu), plan) == answers(cpu)


def test_adapters_take_turns_in_captured_slots(
    start: StartEngine, tiny_model: Path, tmp_path: Path, fake_installed: None
) -> None:
    model = Oracle(tiny_model).model
    targets = (("q_proj", "v_proj"), ("q_proj", "up_proj"), ("k_proj", "down_proj"))
    adapters = [
        LoRARequest(f"adapter {index}", str(make_adapter(tmp_path / str(index), model, names, seed=index)))
        for index, names in enumerate(targets)
    ]
    loras, settings = [None, *adapters, adapters[0]], {"max_loras": 2, "max_lora_rank": 8}
    prompts = [[1, 2, 3, 4]] * len(loras)
    with make_engine(tiny_model, "cpu", **settings) as plain:
        expected = [o.outputs[0].token_ids for o in plain.generate(prompts, PARAMS["greedy"], lora=loras)]
    assert len(set(map(tuple, expected))) == 4

    llm = start(**settings)
    found = [o.outputs[0].token_ids for o in llm.generate(prompts, PARAMS["greedy"], lora=loras)]
    assert found == expected


def test_nothing_is_captured_while_serving(start: StartEngine) -> None:
    llm = start()
    runtime = runtime_of(llm)
    before = len(runtime.graphs)
    answers(llm)
    assert len(runtime.graphs) == before
    assert runtime.num_pools == 1


def test_a_second_cache_gets_graphs_of_its_own(start: StartEngine, cpu: LLM) -> None:
    llm = start()
    runner = runner_of(llm)
    kv = runner._kv
    assert kv is not None
    runner.initialize_kv_cache(kv)
    assert runner.seams.programs.num_programs() == 0
    assert tokens(llm, PARAMS["greedy"]) == tokens(cpu, PARAMS["greedy"])


@pytest.mark.parametrize("model_type", ["gemma2", "mixtral", "gpt2"])
def test_other_families_are_captured_too(tmp_path: Path, fake_installed: None, model_type: str) -> None:
    model = make_tiny_chat_model(tmp_path / "tiny", model_type)
    with make_engine(model, "cpu") as plain:
        expected = tokens(plain, PARAMS["greedy"])
    with make_engine(model) as llm:
        assert tokens(llm, PARAMS["greedy"]) == expected
        assert runtime_of(llm).graphs


def test_two_ranks_answer_as_one(start: StartEngine, cpu: LLM) -> None:
    llm = start(tensor_parallel_size=2)
    assert tokens(llm, PARAMS["greedy"]) == tokens(cpu, PARAMS["greedy"])
