"""Schedulers and policies that others bring: by name, by class path, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiny_distribution import add_distribution

from core_engine.backends.installed import POLICY_GROUP, SCHEDULER_GROUP
from core_engine.errors import ApiVersionError, BackendLoadError, ConfigError, ContractError, PluginError
from core_engine.scheduler.plugins import load_policy, load_scheduler
from core_engine.scheduler.policies import PriorityFirst
from core_engine.scheduler.simple import SimpleScheduler
from core_engine.scheduler.unified import UnifiedScheduler

MODULE = """
from core_engine.plugin.scheduling import FirstComeFirstServed, Policy, Scheduler, UnifiedScheduler

CORE_ENGINE_API = "0.1"

class Mine(UnifiedScheduler):
    pass

class Needy(UnifiedScheduler):
    requires = ("mixed_batch",)

class Boastful(UnifiedScheduler):
    offers = ("teleportation",)

class Sloppy(UnifiedScheduler):
    offers = "lora"

class Half(Scheduler):
    def add(self, request):
        pass

class Order(FirstComeFirstServed):
    pass

class NoOrder(Policy):
    pass

class Unbuildable(FirstComeFirstServed):
    def __init__(self):
        raise ZeroDivisionError("by zero")

def make():
    print("made")
    return Order()

def make_nothing():
    return None

class Stranger:
    pass

number = 3
"""
SCHEDULERS = ("Mine", "Needy", "Boastful", "Sloppy", "Half", "Stranger", "number", "absent")
POLICIES = ("Order", "NoOrder", "Unbuildable", "make", "make_nothing", "Stranger", "number", "absent")


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path with one distribution of schedulers and policies."""
    groups = {
        SCHEDULER_GROUP: {name.lower(): f"acme_scheduling:{name}" for name in SCHEDULERS},
        POLICY_GROUP: {name.lower(): f"acme_scheduling:{name}" for name in POLICIES},
    }
    groups[SCHEDULER_GROUP] |= {"module": "acme_scheduling", "missing": "no_such_module:X"}
    groups[SCHEDULER_GROUP] |= {"old": "old_scheduling:Mine", "newer": "newer_scheduling:Mine"}
    modules = {
        "acme_scheduling": MODULE,
        "old_scheduling": MODULE.replace('CORE_ENGINE_API = "0.1"', ""),
        "newer_scheduling": MODULE.replace("0.1", "0.99"),
    }
    add_distribution(tmp_path, "acme-scheduling", groups, modules=modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in modules:
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def test_built_in_ones_need_no_entry_point() -> None:
    assert load_scheduler("unified", {}) is UnifiedScheduler
    assert load_scheduler("simple", {"CORE_ENGINE_PLUGINS": "other"}) is SimpleScheduler
    assert type(load_policy("priority", {})) is PriorityFirst


def test_an_installed_one_is_found_by_its_name() -> None:
    assert load_scheduler("mine", {}).__name__ == "Mine"
    assert type(load_policy("order", {})).__name__ == "Order"


def test_a_class_path_needs_no_distribution_and_no_permission() -> None:
    environment = {"CORE_ENGINE_PLUGINS": "other"}
    assert load_scheduler("acme_scheduling:Mine", environment).__name__ == "Mine"
    assert type(load_policy("acme_scheduling:Order", environment)).__name__ == "Order"


def test_a_policy_may_be_made_by_a_function_whose_prints_go_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert type(load_policy("make", {})).__name__ == "Order"
    assert capsys.readouterr() == ("", "made\n")


def test_each_engine_gets_a_policy_of_its_own() -> None:
    assert load_policy("order", {}) is not load_policy("order", {})


def test_unknown_names_are_refused_with_the_nearest_of_both_kinds() -> None:
    with pytest.raises(
        ConfigError,
        match=r"scheduler 'simpel' is not installed. Did you mean 'simple'\?.*mine.*unified",
    ):
        load_scheduler("simpel", {})
    with pytest.raises(ConfigError, match=r"scheduling policy 'oder' .* Did you mean 'order'\?.*fcfs"):
        load_policy("oder", {})


def test_the_allow_list_applies_to_installed_ones() -> None:
    environment = {"CORE_ENGINE_PLUGINS": "acme"}
    with pytest.raises(ConfigError, match=r"scheduler 'mine' .*CORE_ENGINE_PLUGINS=acme.*--scheduler"):
        load_scheduler("mine", environment)
    with pytest.raises(ConfigError, match=r"scheduling policy 'order' .*--scheduling-policy"):
        load_policy("order", environment)
    assert load_scheduler("mine", {"CORE_ENGINE_PLUGINS": "acme,mine"})


def test_what_is_not_allowed_is_not_imported() -> None:
    with pytest.raises(ConfigError):
        load_scheduler("mine", {"CORE_ENGINE_PLUGINS": "acme"})
    assert "acme_scheduling" not in sys.modules


def test_two_of_one_name_are_refused_with_both(site: Path) -> None:
    add_distribution(site, "other", {SCHEDULER_GROUP: {"mine": "acme_scheduling:Mine"}})
    with pytest.raises(PluginError, match=r"acme-scheduling 1\.0.*other 1\.0"):
        load_scheduler("mine", {})


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("missing", BackendLoadError, "no_such_module"),
        ("absent", BackendLoadError, "has no 'absent'"),
        ("old", ApiVersionError, "states no plugin API"),
        ("newer", ApiVersionError, "upgrade core-engine"),
        ("module", ContractError, "'acme_scheduling:NAME'"),
        ("number", ContractError, "it must be a Scheduler class"),
        ("stranger", ContractError, "core_engine.plugin.scheduling.Scheduler"),
        ("half", ContractError, "does not define __init__, finish, has_work"),
        ("needy", ContractError, "Did you mean 'mixed_batches'"),
        ("boastful", ContractError, "offers names 'teleportation'; possible: chunked_prefill"),
        ("sloppy", ContractError, "offers must be a tuple"),
    ],
)
def test_a_scheduler_that_does_not_fit_is_refused_by_name(
    name: str, error: type[PluginError], told: str
) -> None:
    with pytest.raises(error, match=told) as refused:
        load_scheduler(name, {})
    assert str(refused.value).startswith(f"scheduler {name!r} of acme-scheduling 1.0")


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("absent", BackendLoadError, "has no 'absent'"),
        ("unbuildable", BackendLoadError, "ZeroDivisionError: by zero"),
        ("number", ContractError, "it must be a class or another callable"),
        ("stranger", ContractError, "core_engine.plugin.scheduling.Policy"),
        ("noorder", ContractError, "does not define order"),
        ("make_nothing", ContractError, "returned None of type NoneType"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused_by_name(
    name: str, error: type[PluginError], told: str
) -> None:
    with pytest.raises(error, match=told) as refused:
        load_policy(name, {})
    assert str(refused.value).startswith(f"scheduling policy {name!r} of acme-scheduling 1.0")


@pytest.mark.parametrize("path", ["old_scheduling:Mine", "newer_scheduling:Mine"])
def test_a_class_path_states_its_api_too(path: str) -> None:
    with pytest.raises(ApiVersionError, match=f"^scheduler '{path}' is refused"):
        load_scheduler(path, {})


def test_a_class_path_that_leads_nowhere_is_named() -> None:
    with pytest.raises(BackendLoadError, match=r"^scheduler 'no_such_module:X' failed to load"):
        load_scheduler("no_such_module:X", {})
