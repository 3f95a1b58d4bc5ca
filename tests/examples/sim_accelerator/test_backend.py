"""The light module: found by its entry point, described without torch, sensible with wrong settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from core_engine_sim import backend

from core_engine.backends.backend import Backend
from core_engine.backends.selection import select_backend
from core_engine.config import EngineConfig
from core_engine.errors import BackendUnavailable
from core_engine.plugin import ConfigError, DetectionState, Probe, UnsupportedFeature
from core_engine.plugin.runtime import BucketShapes, StepKind
from core_engine.testing.fake_context import fake_model_config

MODEL = fake_model_config()
CONFIG = EngineConfig(model="tiny", max_num_batched_tokens=256)


@pytest.fixture
def sim(sim_installed: None) -> Backend:
    """The backend as core sees it, loaded through its entry point."""
    return select_backend("sim").backend


def changes(sim: Backend, **settings: Any) -> dict[str, tuple[Any, Any]]:
    """What check_config changes: field → (old, new)."""
    before = replace(CONFIG, **settings)
    after, lines = sim.check_config(before, MODEL, sim.detect(Probe(environment={})).devices)
    changed = {
        name: (getattr(before, name), getattr(after, name))
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
        if getattr(before, name) != getattr(after, name)
    }
    assert len(lines) == len(changed)
    return changed


def test_it_is_found_with_two_devices(sim: Backend) -> None:
    detection = sim.detect(Probe(environment={}))
    assert detection.state is DetectionState.AVAILABLE
    assert [device.index for device in detection.devices] == [0, 1]
    assert sim.info.priority == 50


@pytest.mark.usefixtures("sim_installed")
def test_installed_it_is_the_automatic_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CORE_ENGINE_BACKEND", raising=False)
    assert select_backend(None).backend.name == "sim"


@pytest.mark.usefixtures("sim_installed")
def test_switched_off_it_leaves_the_choice_to_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CORE_ENGINE_BACKEND", raising=False)
    monkeypatch.setenv("CORE_ENGINE_SIM_DEVICES", "0")
    assert select_backend(None).backend.name == "cpu"


@pytest.mark.usefixtures("sim_installed")
def test_switched_off_but_asked_for_it_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORE_ENGINE_SIM_DEVICES", "0")
    with pytest.raises(BackendUnavailable, match="CORE_ENGINE_SIM_DEVICES=0"):
        select_backend("sim")


@pytest.mark.parametrize("text", ["many", "-1"])
def test_a_wrong_number_of_devices_is_a_reason(text: str) -> None:
    detection = backend.detect(Probe(environment={"CORE_ENGINE_SIM_DEVICES": text}))
    assert detection.state is DetectionState.UNAVAILABLE
    assert f"CORE_ENGINE_SIM_DEVICES='{text}' is no number" in detection.reason


def test_a_fitting_configuration_is_left_alone(sim: Backend) -> None:
    assert changes(sim) == {}


def test_the_token_budget_becomes_a_bucket(sim: Backend) -> None:
    assert changes(sim, max_num_batched_tokens=100) == {"max_num_batched_tokens": (100, 128)}
    assert changes(sim, max_num_batched_tokens=2048) == {"max_num_batched_tokens": (2048, 256)}


def test_the_largest_bucket_is_an_option(sim: Backend) -> None:
    found = changes(
        sim, max_num_batched_tokens=2048, max_num_seqs=64, backend_options={"max_padded_tokens": "32"}
    )
    assert found == {"max_num_batched_tokens": (2048, 32), "max_num_seqs": (64, 32)}


def test_a_largest_bucket_that_is_no_power_of_two_is_refused(sim: Backend) -> None:
    with pytest.raises(ConfigError, match="power of two, got 48"):
        changes(sim, backend_options={"max_padded_tokens": "48"})


def test_a_worker_gets_the_device_that_was_asked_for(sim: Backend) -> None:
    devices = sim.detect(Probe(environment={})).devices
    (plan,) = sim.plan_workers(replace(CONFIG, backend_options={"device": "1"}), devices)
    assert plan.device_indices == (1,)


def test_a_model_over_several_devices_is_refused(sim: Backend) -> None:
    devices = sim.detect(Probe(environment={})).devices
    with pytest.raises(UnsupportedFeature, match="tensor_parallel_size 2"):
        sim.plan_workers(replace(CONFIG, tensor_parallel_size=2), devices)


def test_a_small_vocabulary_limits_the_logprobs(sim: Backend) -> None:
    assert sim.capabilities((), CONFIG, MODEL).max_logprobs == 20
    assert sim.capabilities((), CONFIG, replace(MODEL, vocab_size=7)).max_logprobs == 7


@pytest.mark.parametrize("budget", [1, 8, 32, 256])
def test_the_declared_buckets_are_those_that_steps_are_padded_to(sim: Backend, budget: int) -> None:
    config = replace(CONFIG, max_num_batched_tokens=budget)
    buckets = sim.capabilities((), config, MODEL).token_buckets
    shapes = BucketShapes(max_num_batched_tokens=budget, max_num_seqs=4, max_logprobs=0)
    for num_tokens in range(1, budget + 1):
        padded = shapes.pad(num_tokens, 1, StepKind.MIXED).num_tokens
        assert padded == next(bucket for bucket in buckets if bucket >= num_tokens)


@pytest.mark.parametrize("attention", ["paged", "dense"])
@pytest.mark.parametrize("offered", [True, False])
def test_chunks_and_mixed_steps_are_offered_with_either_kernel_or_not_at_all(
    sim: Backend, attention: str, offered: bool
) -> None:
    options = {"attention": attention, "mixed_batches": str(offered).lower()}
    capabilities = sim.capabilities((), replace(CONFIG, backend_options=options), MODEL)
    assert (capabilities.chunked_prefill, capabilities.mixed_batches) == (offered, offered)
