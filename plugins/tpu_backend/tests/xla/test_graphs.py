"""Every graph is compiled at warm-up, and none while serving (cases 1, 2, 9 and 11)."""

from __future__ import annotations

import random

import pytest
import torch
from core_engine_tpu.programs import TpuPrograms
from core_engine_tpu.runtime import XlaRuntime
from request_mix import draw_requests
from xla_engine import graph_counts, runner_of

from core_engine import LLM, SamplingParams
from core_engine.errors import CoreEngineError
from core_engine.plugin.runtime import SamplingKind


def test_case_01_two_hundred_random_requests_compile_nothing(tpu: LLM) -> None:
    before = graph_counts(tpu)
    prompts, params = draw_requests(200)
    outputs = tpu.generate(prompts, params)
    assert all(output.outputs[0].finish_reason == "length" for output in outputs)
    assert graph_counts(tpu) == before


def test_case_02_warm_up_compiles_what_the_buckets_say_and_a_second_one_nothing(tpu: LLM) -> None:
    runner = runner_of(tpu)
    shapes = runner.seams.shapes.warm_up_shapes()
    sizes = [(shape.num_tokens, shape.num_reqs) for shape in shapes]
    assert sizes == [(1, 1), (2, 2), (4, 4), (16, 4), (32, 4)]
    request_counts = {shape.num_reqs for shape in shapes}
    num_samplers = len(runner.seams.shapes.warm_up_sampling_kinds())
    groups = {group.name: group.num_programs for group in tpu.engine.started.table.programs}
    assert groups == {
        "backbone": len(shapes) + 1,  # and one for the profile run, which has no cache
        "logits": len(shapes),
        "sample": len(request_counts) * num_samplers,
        "score": len(request_counts),
    }
    before = graph_counts(tpu)
    runner.capture_model()
    assert graph_counts(tpu) == before


def test_case_09_no_operator_falls_back_to_the_host(tpu: LLM) -> None:
    tpu.generate(*draw_requests(4))
    assert runner_of(tpu).device.fallbacks() == ()


def test_case_11_any_number_of_logprobs_is_the_same_graph(tpu: LLM) -> None:
    before = graph_counts(tpu)
    for count in (None, *range(21)):
        params = SamplingParams(temperature=0, max_tokens=2, logprobs=count, ignore_eos=True)
        (output,) = tpu.generate([[7, 3, 100]], params)
        rows = output.outputs[0].logprobs
        assert (rows is None) if count is None else all(len(row) in (count, count + 1) for row in rows or ())
    assert graph_counts(tpu) == before


@pytest.mark.parametrize("count", [None, 5])
def test_log_probabilities_are_a_graph_of_their_own_after_the_sampler_that_the_step_needs(
    tpu: LLM, monkeypatch: pytest.MonkeyPatch, count: int | None
) -> None:
    runner, ran = runner_of(tpu), []
    sample, score = runner._sample, runner._score

    def note_sample(logits: torch.Tensor, inputs: dict[str, torch.Tensor], kind: SamplingKind) -> object:
        ran.append(kind)
        return sample(logits, inputs, kind)

    def note_score(*args: object) -> object:
        ran.append("score")
        return score(*args)

    monkeypatch.setattr(runner, "_sample", note_sample)
    monkeypatch.setattr(runner, "_score", note_score)
    tpu.generate([[7, 3, 100]], SamplingParams(temperature=0, max_tokens=1, logprobs=count))
    assert ran == [SamplingKind(all_greedy=True), *([] if count is None else ["score"])]


@pytest.fixture
def sealed(runtime: XlaRuntime) -> TpuPrograms:
    return TpuPrograms(runtime, fail_on_compilation=True)


def test_a_shape_that_warm_up_did_not_see_fails_under_the_guard(
    runtime: XlaRuntime, sealed: TpuPrograms
) -> None:
    double = sealed.compile("double", lambda tensor: tensor * 2)
    with sealed.without_gradients():
        double(runtime.upload(torch.ones(3)))
        sealed.seal()
        double(runtime.upload(torch.ones(3)))
        with pytest.raises(CoreEngineError, match=r"'double' was compiled while serving, for \[5\]"):
            double(runtime.upload(torch.ones(5)))


def test_it_is_told_once_a_shape_in_production(runtime: XlaRuntime, caplog: pytest.LogCaptureFixture) -> None:
    programs = TpuPrograms(runtime, fail_on_compilation=False)
    triple = programs.compile("triple", lambda tensor: tensor * 3)
    with programs.without_gradients():
        triple(runtime.upload(torch.ones(2)))
        programs.seal()
        for size in (6, 6, 6):
            result = triple(runtime.upload(torch.ones(size)))
    assert result.cpu().tolist() == [3.0] * 6
    told = [record.message for record in caplog.records if record.name.startswith("core_engine")]
    assert told == ["graph 'triple' was compiled while serving, for [6]: warm-up did not prepare that shape"]


def test_a_device_slice_outside_a_graph_is_caught(runtime: XlaRuntime, sealed: TpuPrograms) -> None:
    double = sealed.compile("double", lambda tensor: tensor * 2)
    tensor = runtime.upload(torch.arange(8.0))
    with sealed.without_gradients():
        double(tensor)
        sealed.seal()
        with pytest.raises(CoreEngineError, match="compiled while serving"):
            double(tensor[: random.Random(0).randint(3, 5)])
