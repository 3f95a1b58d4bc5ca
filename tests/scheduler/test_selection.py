from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from scheduler.harness import ALL

from core_engine.config import EngineConfig
from core_engine.errors import ConfigError, UnsupportedFeature
from core_engine.plugin import Capabilities
from core_engine.scheduler.selection import SchedulerChoice, choose_scheduler
from core_engine.scheduler.simple import SimpleScheduler
from core_engine.scheduler.unified import UnifiedScheduler

FULL = replace(ALL, draft_tokens=True, lora=True, sliding_window=True)


def choose(capabilities: Capabilities = FULL, **settings: Any) -> SchedulerChoice:
    return choose_scheduler(EngineConfig(model="m", **settings), capabilities, "acme", {})


def test_unified_is_the_default() -> None:
    assert choose() == SchedulerChoice("unified", UnifiedScheduler, "the default")


def test_where_unified_cannot_run_simple_does_and_the_reason_says_what_is_missing() -> None:
    assert choose(replace(FULL, mixed_batches=False)) == SchedulerChoice(
        "simple", SimpleScheduler, "not unified: it needs mixed_batches, which the backend does not declare"
    )


def test_the_users_choice_wins_over_the_backends_preference() -> None:
    capabilities = replace(FULL, preferred_scheduler="simple")

    assert choose(capabilities).name == "simple"
    assert choose(capabilities).reason == "preferred by acme"
    assert choose(capabilities, scheduler="unified") == SchedulerChoice(
        "unified", UnifiedScheduler, "asked for"
    )


def test_a_feature_that_was_asked_for_by_name_wins_over_the_backends_preference() -> None:
    choice = choose(replace(FULL, preferred_scheduler="simple"), enable_prefix_caching=True)

    assert choice.name == "unified"
    assert choice.reason == (
        "not simple: enable_prefix_caching=True was asked for, and the scheduler does without it"
    )


def test_all_gaps_of_the_users_choice_are_listed_at_once() -> None:
    bare = Capabilities()

    with pytest.raises(UnsupportedFeature) as refusal:
        choose(bare, scheduler="unified", enable_prefix_caching=True, max_loras=2)

    for part in ("'unified'", "'acme'", "mixed_batches", "enable_prefix_caching=True", "max_loras=2"):
        assert part in str(refusal.value)


def test_all_that_the_backend_does_not_offer_is_listed_at_once() -> None:
    with pytest.raises(UnsupportedFeature) as refusal:
        choose(Capabilities(), enable_chunked_prefill=True, num_draft_tokens=4)

    assert str(refusal.value) == (
        "enable_chunked_prefill=True, num_draft_tokens=4: asked for, but not offered by backend 'acme'; "
        "leave it off"
    )


def test_a_wish_that_no_scheduler_can_serve_names_the_gap_of_each() -> None:
    with pytest.raises(UnsupportedFeature) as refusal:
        choose(replace(FULL, mixed_batches=False), enable_chunked_prefill=True)

    for part in ("not unified: it needs mixed_batches", "not simple: enable_chunked_prefill=True"):
        assert part in str(refusal.value)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"scheduler 'unifed' is not installed. Did you mean 'unified'\?"):
        choose(scheduler="unifed")


def test_a_preference_that_does_not_load_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    choice = choose(replace(FULL, preferred_scheduler="acme-scheduler"))

    assert choice == SchedulerChoice("unified", UnifiedScheduler, "acme-scheduler does not load")
    assert "scheduler 'acme-scheduler' is not installed" in caplog.text


def test_a_preference_that_does_not_load_is_fatal_where_plugins_are_strict() -> None:
    config = EngineConfig(model="m")
    capabilities = replace(FULL, preferred_scheduler="acme-scheduler")

    with pytest.raises(ConfigError, match="'acme-scheduler' is not installed"):
        choose_scheduler(config, capabilities, "acme", {"CORE_ENGINE_STRICT_PLUGINS": "1"})


#: Capability that is taken away → the scheduler then, and a setting that asks for it by name.
CASE_31 = {
    "mixed_batches": ("simple", {"scheduler": "unified"}),
    "chunked_prefill": ("unified", {"enable_chunked_prefill": True}),
    "prefix_caching": ("unified", {"enable_prefix_caching": True}),
    "draft_tokens": ("unified", {"num_draft_tokens": 2}),
    "lora": ("unified", {"max_loras": 1}),
}


@pytest.mark.parametrize("capability", CASE_31)
def test_case_31_each_capability_removed_in_turn(capability: str) -> None:
    expected, asked = CASE_31[capability]
    without = replace(FULL, **{capability: False})

    choice = choose(without)

    assert choice.name == expected
    assert (capability in choice.reason) == (expected == "simple")
    (setting,) = asked
    assert choose(FULL, **asked).name == "unified"
    with pytest.raises(UnsupportedFeature, match=setting):
        choose(without, **asked)


def test_case_31_speaks_of_every_capability_that_a_scheduler_may_use() -> None:
    used = {*UnifiedScheduler.requires, *UnifiedScheduler.offers}

    assert set(CASE_31) == used
    assert used <= {field.name for field in fields(Capabilities)}


def test_case_31_nothing_is_enough_for_simple() -> None:
    assert choose(Capabilities()).name == "simple"
