from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_adapter import make_adapter

from core_engine._ragged import Ragged
from core_engine.backends.cpu.runner import CpuModelRunner
from core_engine.config import EngineConfig
from core_engine.errors import DeviceLost, EngineError, UnsupportedFeature
from core_engine.kv_cache.plan import plan_kv_cache
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheSpec
from core_engine.lora.adapter import AdapterFiles
from core_engine.lora.layers import LoRALinear
from core_engine.lora.messages import LoRAAdapter
from core_engine.models.config_reader import read_model_config
from core_engine.plugin import Capabilities
from core_engine.sampling.params import SamplingParams
from core_engine.scheduler.output import NewRequest, SchedulerOutput
from core_engine.testing.fake_context import fake_engine_config, fake_worker_context
from core_engine.testing.oracle import Oracle
from core_engine.testing.tiny_models import make_tiny_config, save_tiny_model
from core_engine.worker.context import RunnerContext

FULL = Capabilities(chunked_prefill=True, mixed_batches=True, sliding_window=True)


def make_runner(model: Path, capabilities: Capabilities = FULL, **settings: Any) -> CpuModelRunner:
    config: EngineConfig = fake_engine_config(model=str(model), block_size=32, **settings)
    context = fake_worker_context(config, capabilities=capabilities, options={"attention": "reference"})
    context = replace(context, model=read_model_config(config))
    return CpuModelRunner(
        RunnerContext(worker=context, capabilities=capabilities, device=torch.device("cpu"))
    )


@pytest.fixture(scope="module")
def windowed_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "mistral"
    save_tiny_model(make_tiny_config("mistral"), folder)
    return folder


def test_each_layers_cache_and_its_bytes_are_reported(windowed_model: Path) -> None:
    runner = make_runner(windowed_model)
    runner.load_model()
    specs = runner.get_kv_cache_spec()
    assert len(specs) == 4
    assert all(not isinstance(spec, str) and spec.sliding_window == 7 for spec in specs.values())
    assert all(not isinstance(spec, str) and spec.page_bytes > 0 for spec in specs.values())


def test_a_window_that_the_backend_does_not_declare_is_refused(windowed_model: Path) -> None:
    runner = make_runner(windowed_model, replace(FULL, sliding_window=False))
    with pytest.raises(UnsupportedFeature, match="sliding window"):
        runner.load_model()


def test_calls_out_of_order_say_what_comes_first(windowed_model: Path) -> None:
    runner = make_runner(windowed_model)
    with pytest.raises(EngineError, match="load_model first"):
        runner.get_model()
    with pytest.raises(EngineError, match="initialize_kv_cache first"):
        runner.dummy_run(1, 1)


def test_case_30_a_profile_run_needs_no_cache(windowed_model: Path) -> None:
    runner = make_runner(windowed_model)
    runner.load_model()
    assert runner.profile_run().activation_bytes >= 0
    assert all(layer.cache is None for layer in runner.layers.values())


@pytest.fixture(scope="module")
def alternating_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers 0, 1 and 3 with a window, layers 2 and 4 without, each a cache of its own."""
    folder = tmp_path_factory.mktemp("models") / "gemma3"
    sliding, full = "sliding_attention", "full_attention"
    kinds = [sliding, sliding, full, sliding, full]
    save_tiny_model(make_tiny_config("gemma3_text", num_hidden_layers=5, layer_types=kinds), folder)
    return folder


def test_the_layers_at_one_place_of_all_groups_share_a_cache(alternating_model: Path) -> None:
    runner = make_runner(alternating_model)
    runner.load_model()
    specs = runner.get_kv_cache_spec()
    pool = plan_kv_cache(
        specs,
        available_bytes=1 << 20,
        block_size=32,
        max_model_len=256,
        longest_model_len=256,
        max_step_tokens=32,
    )

    num_bytes = runner.initialize_kv_cache(pool)

    layers = list(runner.layers.values())
    assert [layer.group for layer in layers] == [1, 1, 0, 2, 0]
    first, second = layers[2].cache, layers[4].cache
    assert first is not second
    assert [layer.cache for layer in layers] == [first, second, first, first, second]
    page_bytes = [spec.page_bytes for spec in specs.values() if isinstance(spec, KVCacheSpec)]
    assert num_bytes == 2 * page_bytes[0] * pool.num_blocks <= 1 << 20


def test_a_cache_keeps_what_a_layer_that_reuses_it_sees(tmp_path: Path) -> None:
    save_tiny_model(make_tiny_config("gemma3n_text"), tmp_path / "gemma3n")
    runner = make_runner(tmp_path / "gemma3n")
    runner.load_model()
    specs = runner.get_kv_cache_spec()
    owner = next(spec for spec in specs.values() if isinstance(spec, str))
    spec = specs[owner]
    assert isinstance(spec, KVCacheSpec)
    for window, kept in ((5, 7), (7, 7), (9, 9), (None, None)):
        runner.kv_cache_spec[owner] = replace(spec, sliding_window=7)
        runner._keep_for(owner, window)
        found = runner.kv_cache_spec[owner]
        assert isinstance(found, KVCacheSpec)
        assert found.sliding_window == kept


def pool_of(runner: CpuModelRunner, num_bytes: int = 1 << 20) -> KVCacheConfig:
    return plan_kv_cache(
        runner.get_kv_cache_spec(),
        available_bytes=num_bytes,
        block_size=32,
        max_model_len=256,
        longest_model_len=256,
        max_step_tokens=32,
    )


def first_step(name: str, step_id: int, **params: Any) -> SchedulerOutput:
    """A prompt of three tokens in block 1; greedy unless ``params`` say otherwise."""
    prompt = NewRequest(
        request_id=name,
        prompt_token_ids=np.array([5, 6, 7], dtype=np.int32),
        sampling_params=SamplingParams(**{"temperature": 0.0, **params}),
        seed=0,
    )
    return SchedulerOutput(
        step_id=step_id,
        request_ids=(name,),
        num_scheduled_tokens=np.array([3], dtype=np.int32),
        num_computed_tokens=np.array([0], dtype=np.int32),
        new_block_ids=(Ragged.from_rows([[1]]),),
        new_requests=(prompt,),
    )


@pytest.mark.parametrize("num_logprobs", [0, 3])
def test_log_probabilities_are_the_models_own_before_bias_penalties_and_temperature(
    windowed_model: Path, num_logprobs: int
) -> None:
    runner = make_runner(windowed_model)
    runner.load_model()
    runner.initialize_kv_cache(pool_of(runner))
    # The prompt is 5, 6, 7.
    expected = torch.log_softmax(Oracle(windowed_model).logits([5, 6, 7])[-1], dim=-1)
    options = {"logit_bias": {9: 100.0}, "repetition_penalty": 1.5, "temperature": 0.5}

    output = runner.execute_model(first_step("a", 0, logprobs=num_logprobs, **options)).result()

    assert output.sampled_token_ids.values.tolist() == [9]
    assert output.logprobs is not None
    ids = [9, *expected.topk(num_logprobs).indices.tolist()]
    assert output.logprobs.token_ids.tolist() == [ids]
    np.testing.assert_allclose(output.logprobs.logprobs[0], expected[ids], atol=1e-5)
    assert output.logprobs.ranks.tolist() == [1 + int((expected > expected[9]).sum())]


def test_a_row_without_a_token_has_log_probabilities_of_no_meaning(windowed_model: Path) -> None:
    runner = make_runner(windowed_model)
    runner.load_model()
    runner.initialize_kv_cache(pool_of(runner))
    with torch.no_grad():
        for weight in runner.get_model().parameters():
            weight.fill_(torch.nan)

    output = runner.execute_model(first_step("a", 0, logprobs=2)).result()

    assert output.sampled_token_ids.values.tolist() == [-1]
    assert output.logprobs is not None
    assert output.logprobs.token_ids.shape == (1, 3)


def test_case_30_a_profile_run_between_steps_touches_no_cache(windowed_model: Path) -> None:
    runner = make_runner(windowed_model)
    runner.load_model()
    runner.initialize_kv_cache(pool_of(runner))
    runner.execute_model(first_step("a", 0)).result()
    before = [half.clone() for layer in runner.layers.values() for half in layer.cache]
    assert any(half.any() for half in before)

    runner.profile_run()

    after = [half for layer in runner.layers.values() for half in layer.cache]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_case_30_caches_can_be_bound_again(windowed_model: Path) -> None:
    runner = make_runner(windowed_model)
    runner.load_model()
    tokens = []
    for step_id, num_bytes in enumerate((1 << 20, 1 << 21)):
        runner.initialize_kv_cache(pool_of(runner, num_bytes))
        output = runner.execute_model(first_step("a", step_id)).result()
        tokens.append(output.sampled_token_ids.values.tolist())

    assert tokens[0] == tokens[1]


def test_case_30_a_layer_that_shares_a_cache_sees_the_same_tensors(tmp_path: Path) -> None:
    save_tiny_model(make_tiny_config("gemma3n_text"), tmp_path / "gemma3n")
    runner = make_runner(tmp_path / "gemma3n")
    runner.load_model()
    owners = {name: owner for name, owner in runner.get_kv_cache_spec().items() if isinstance(owner, str)}
    assert owners

    runner.initialize_kv_cache(pool_of(runner))

    for name, owner in owners.items():
        assert runner.layers[name].cache is runner.layers[owner].cache


def test_a_step_that_failed_does_not_fail_the_next(
    windowed_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner(windowed_model)
    runner.load_model()
    runner.initialize_kv_cache(pool_of(runner))
    lost = runner.execute_model(first_step("lost", 0))

    def fail(arrays: object) -> None:
        raise DeviceLost("gone")

    monkeypatch.setattr(lost, "_build", fail)
    with pytest.raises(DeviceLost):
        lost.result()

    following = replace(first_step("fine", 1), finished_request_ids=("lost",))
    assert runner.execute_model(following).result().request_ids == ("fine",)


def test_ends_and_preemptions_may_be_told_again(windowed_model: Path) -> None:
    runner = make_runner(windowed_model)
    runner.load_model()
    runner.initialize_kv_cache(pool_of(runner))
    runner.execute_model(first_step("a", 0)).result()
    told = {"preempted_request_ids": ("a", "unknown"), "finished_request_ids": ("gone",)}
    for step_id in (1, 2):
        step = replace(first_step(f"b{step_id}", step_id), **told)
        assert runner.execute_model(step).result().request_ids == (f"b{step_id}",)


def test_lora_counts_among_the_weights_and_in_the_largest_step(windowed_model: Path) -> None:
    plain, adaptable = make_runner(windowed_model), make_runner(windowed_model, max_loras=3, max_lora_rank=8)
    extra = adaptable.load_model().weight_bytes - plain.load_model().weight_bytes
    layers = [m for m in adaptable.get_model().modules() if isinstance(m, LoRALinear)]
    assert len(layers) == 4 * 7
    assert extra == sum(3 * 8 * 4 * (layer.in_features + layer.out_features) for layer in layers)
    masks = []
    layers[0].register_forward_hook(lambda *_: masks.append(adaptable.forward_context.current.lora_mask))
    adaptable.profile_run()
    assert masks[0] is not None


def test_while_lora_is_off_its_hooks_say_so_and_no_layer_is_replaced(windowed_model: Path) -> None:
    runner = make_runner(windowed_model)
    runner.load_model()
    assert not any(isinstance(module, LoRALinear) for module in runner.get_model().modules())
    for call in (runner.list_loras, lambda: runner.remove_lora(1)):
        with pytest.raises(UnsupportedFeature, match="max_loras of at least 1"):
            call()


def test_a_new_cache_starts_with_free_lora_slots(windowed_model: Path, tmp_path: Path) -> None:
    runner = make_runner(windowed_model, max_loras=1)
    runner.load_model()
    for number in (1, 2):
        folder = make_adapter(tmp_path / str(number), runner.get_model(), ("q_proj",), seed=number)
        digest = AdapterFiles.read(str(folder)).digest()
        runner.add_lora(LoRAAdapter(lora_id=number, name=str(number), path=str(folder), digest=digest))
        runner.initialize_kv_cache(pool_of(runner))
        step = first_step("a", number)
        (request,) = step.new_requests
        runner.execute_model(replace(step, new_requests=(replace(request, lora_id=number),))).result()
        assert [info.slot for info in runner.list_loras()] == [-1] * (number - 1) + [0]
