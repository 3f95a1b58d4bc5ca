"""Find schedulers and policies: built in, installed as entry points, or named by class path."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from core_engine.backends.installed import POLICY_GROUP, SCHEDULER_GROUP, noun_of
from core_engine.backends.named_plugin import find_named, load_callable
from core_engine.backends.plugin_code import describe_failure, describe_value, prints_to_stderr
from core_engine.errors import BackendLoadError, ContractError, CoreEngineError, did_you_mean
from core_engine.plugin._capabilities import Capabilities
from core_engine.plugin._load_class import load_class
from core_engine.scheduler.contract import Scheduler
from core_engine.scheduler.features import SETTING_OF
from core_engine.scheduler.policies import POLICIES, Policy

__all__ = ["SCHEDULERS", "load_policy", "load_scheduler"]

#: The built-in schedulers by name; class paths, because their base loads its policy through this module.
SCHEDULERS: Mapping[str, str] = {
    "unified": "core_engine.scheduler.unified:UnifiedScheduler",
    "simple": "core_engine.scheduler.simple:SimpleScheduler",
}
_DOOR = "core_engine.plugin.scheduling"


def load_scheduler(name: str, environment: Mapping[str, str] | None = None) -> type[Scheduler]:
    """Return the scheduler class called ``name``: built in, installed, or ``package.module:Class``.

    ``environment`` (by default the process's) is where ``CORE_ENGINE_PLUGINS`` is read; it does not
    apply to class paths. Raises `ConfigError` for an unknown or excluded name, `PluginError` for one
    that two distributions bring, `BackendLoadError` when the import fails, `ApiVersionError` for
    another plugin API, `ContractError` for anything but a whole `Scheduler` class.
    """
    if name in SCHEDULERS:
        builtin: type[Scheduler] = load_class(SCHEDULERS[name])
        return builtin
    subject, loaded = _load(
        SCHEDULER_GROUP, name, "--scheduler", SCHEDULERS, environment, "a Scheduler class"
    )
    if not (inspect.isclass(loaded) and issubclass(loaded, Scheduler)):
        raise ContractError(
            f"{subject} is {describe_value(loaded)}; it must be a class derived from {_DOOR}.Scheduler"
        )
    _refuse_abstract(subject, loaded)
    _check_names(subject, "requires", loaded.requires, {field.name for field in fields(Capabilities)})
    _check_names(subject, "offers", loaded.offers, SETTING_OF)
    return loaded


def load_policy(name: str, environment: Mapping[str, str] | None = None) -> Policy:
    """Return a new policy called ``name``: built in, installed, or ``package.module:Class``.

    The class, or any other callable, is called without arguments. Raises what `load_scheduler` does.
    """
    if name in POLICIES:
        return POLICIES[name]()
    subject, make = _load(
        POLICY_GROUP, name, "--scheduling-policy", POLICIES, environment, "a class or another callable"
    )
    if inspect.isclass(make):
        if not issubclass(make, Policy):
            raise ContractError(
                f"{subject} is {describe_value(make)}; it must be a class derived from {_DOOR}.Policy"
            )
        _refuse_abstract(subject, make)
    try:
        with prints_to_stderr():
            policy: object = make()
    except (CoreEngineError, KeyboardInterrupt):
        raise
    except BaseException as failure:
        raise BackendLoadError(f"{subject} failed: {describe_failure(failure)}") from failure
    if not isinstance(policy, Policy):
        raise ContractError(
            f"{subject} returned {describe_value(policy)}; it must be derived from {_DOOR}.Policy"
        )
    return policy


def _load(
    group: str,
    name: str,
    flag: str,
    builtin: Mapping[str, Any],
    environment: Mapping[str, str] | None,
    what: str,
) -> tuple[str, Callable[..., Any]]:
    """Return the words that messages begin with, and what ``name`` stands for."""
    if ":" in name:
        subject, path = f"{noun_of(group)} {name!r}", name
    else:
        variables = os.environ if environment is None else environment
        entry = find_named(group, name, variables, asked_by=flag, builtin=builtin)
        subject, path = entry.subject, entry.value
    with prints_to_stderr():
        return subject, load_callable(path, subject, what=what)


def _refuse_abstract(subject: str, loaded: type) -> None:
    missing = sorted(getattr(loaded, "__abstractmethods__", ()))
    if missing:
        raise ContractError(f"{subject} does not define {', '.join(missing)}")


def _check_names(subject: str, attribute: str, names: object, known: Any) -> None:
    if not isinstance(names, tuple):
        raise ContractError(f"{subject}: {attribute} must be a tuple of names, got {describe_value(names)}")
    for name in names:
        if name not in known:
            raise ContractError(
                f"{subject}: {attribute} names {name!r}; possible: {', '.join(sorted(known))}."
                f"{did_you_mean(str(name), known)}"
            )
