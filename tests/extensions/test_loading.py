from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from tiny_distribution import EXTENSIONS, add_distribution

from core_engine.errors import (
    ApiVersionError,
    BackendLoadError,
    ConfigError,
    ContractError,
    DeviceLost,
    PluginError,
    PluginMismatch,
)
from core_engine.executor.worker_host import WorkerHost
from core_engine.extensions.loading import find_extensions, load_extension, requested_extensions
from core_engine.extensions.step_tracer import StepTracer
from core_engine.testing.fake_backend import load_fake_backend
from core_engine.testing.fake_context import fake_engine_config, fake_worker_context

WRAPPERS = """
from core_engine.errors import DeviceLost
from core_engine.plugin import runner_hookimpl, worker_hookimpl

CORE_ENGINE_API = "0.1"
calls = []

class Both:
    def __init__(self, context):
        self.rank = context.plan.rank

    @worker_hookimpl(wrapper=True, specname="load_model")
    def of_the_worker(self):
        calls.append("worker")
        return (yield)

    @runner_hookimpl(wrapper=True, specname="load_model")
    def of_the_runner(self):
        calls.append("runner")
        return (yield)

class Nothing:
    def __init__(self, context):
        pass

def broken(context):
    raise ZeroDivisionError("by zero")

def own_error(context):
    raise DeviceLost("gone")

def leaves(context):
    raise SystemExit(2)

def aborts(context):
    raise BaseException("gone")

class Noisy(Both):
    def __init__(self, context):
        print("create")
"""
OLD = "def make(context):\n    return None\n"
NEWER = "CORE_ENGINE_API = '0.99'\ndef make(context):\n    return None\n"


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path with one distribution of many extensions."""
    names = {
        name: f"wrappers:{name}" for name in ("Both", "Nothing", "broken", "own_error", "leaves", "aborts")
    }
    more = {
        "absent": "no_such_module:X",
        "nameless": "wrappers:Bth",
        "module": "wrappers",
        "constant": "wrappers:CORE_ENGINE_API",
        "noisy": "noisy:Noisy",
        "old": "old:make",
        "newer": "newer:make",
    }
    modules = {"noisy": "print('import')\n" + WRAPPERS, "wrappers": WRAPPERS, "old": OLD, "newer": NEWER}
    add_distribution(tmp_path, "acme-extensions", {EXTENSIONS: {**names, **more}}, modules=modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in modules:
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def load(name: str) -> object:
    (entry,) = find_extensions((name,), {})
    return load_extension(entry, fake_worker_context())


def test_nothing_is_on_unless_asked_for() -> None:
    assert requested_extensions(fake_engine_config(), {}) == ()
    assert find_extensions((), {}) == ()


def test_the_variable_turns_extensions_on_and_the_configuration_wins() -> None:
    environment = {"CORE_ENGINE_EXTENSIONS": "step-tracer, Both,,step-tracer"}
    assert requested_extensions(fake_engine_config(), environment) == ("step-tracer", "Both")
    config = fake_engine_config(extensions=("Nothing",))
    assert requested_extensions(config, environment) == ("Nothing",)


def test_an_extension_gets_the_workers_context() -> None:
    assert load("Both").rank == 0


def test_one_extension_wraps_worker_and_runner() -> None:
    host = WorkerHost(load_fake_backend(), fake_worker_context(), find_extensions(("Both",), {}))
    host.init_device()
    host.load_model()
    import wrappers

    assert wrappers.calls == ["worker", "runner"]


def test_cores_own_extension_is_installed() -> None:
    (entry,) = find_extensions(("step-tracer",), {})
    assert entry.value == f"{StepTracer.__module__}:StepTracer"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'boht' is not installed.* Installed are .*step-tracer"):
        find_extensions(("boht",), {})
    with pytest.raises(ConfigError, match=r"Did you mean 'step-tracer'\?"):
        find_extensions(("step-trace",), {})


def test_the_allow_list_applies_but_not_to_cores_own() -> None:
    environment = {"CORE_ENGINE_PLUGINS": "acme"}
    with pytest.raises(ConfigError, match=r"'Both'.*CORE_ENGINE_PLUGINS=acme.*CORE_ENGINE_EXTENSIONS"):
        find_extensions(("Both",), environment)
    assert find_extensions(("Both",), {"CORE_ENGINE_PLUGINS": "acme,Both"})
    assert find_extensions(("step-tracer",), environment)


def test_two_plugins_of_one_name_are_refused_with_both(site: Path) -> None:
    add_distribution(site, "other-extensions", {EXTENSIONS: {"Both": "wrappers:Both"}})
    with pytest.raises(PluginError, match=r"acme-extensions 1\.0.*other-extensions 1\.0"):
        find_extensions(("Both",), {})


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("absent", "no_such_module"),
        ("nameless", "Did you mean 'Both'"),
        ("broken", "ZeroDivisionError: by zero"),
        ("leaves", "SystemExit: 2"),
        ("aborts", "BaseException: gone"),
    ],
)
def test_an_extension_that_fails_to_load_is_fatal(name: str, cause: str) -> None:
    with pytest.raises(BackendLoadError, match=cause):
        load(name)


def test_a_core_error_of_an_extension_passes_with_a_note() -> None:
    with pytest.raises(DeviceLost) as caught:
        load("own_error")
    assert "extension 'own_error' of acme-extensions 1.0" in caught.value.__notes__[0]


def test_an_extension_that_wraps_nothing_is_refused() -> None:
    with pytest.raises(ContractError, match="wraps nothing"):
        load("Nothing")


@pytest.mark.parametrize(
    ("name", "cause"), [("old", "states no plugin API"), ("newer", "upgrade core-engine")]
)
def test_the_api_version_is_checked(name: str, cause: str) -> None:
    with pytest.raises(ApiVersionError, match=f"extension '{name}' .*{cause}"):
        load(name)


def test_another_version_than_the_parent_resolved_is_a_mismatch() -> None:
    (entry,) = find_extensions(("Both",), {})
    with pytest.raises(PluginMismatch, match=r"acme-extensions 2\.0 .* acme-extensions 1\.0"):
        load_extension(dataclasses.replace(entry, version="2.0"), fake_worker_context())


def test_a_plain_module_is_refused_with_what_an_extension_is() -> None:
    with pytest.raises(
        ContractError,
        match=r"^extension 'module' of acme-extensions 1\.0 .*'wrappers:NAME'.*takes the WorkerContext",
    ):
        load("module")


def test_an_extension_must_be_callable() -> None:
    with pytest.raises(
        ContractError,
        match=r"'constant' of acme-extensions .*must be a callable that takes the WorkerContext",
    ):
        load("constant")


@pytest.mark.parametrize("name", ["absent", "nameless"])
def test_an_extension_that_does_not_import_is_named_in_the_message(name: str) -> None:
    with pytest.raises(BackendLoadError, match=rf"^extension '{name}' of acme-extensions 1\.0"):
        load(name)


def test_the_missing_api_does_not_speak_of_a_backend() -> None:
    with pytest.raises(ApiVersionError) as refused:
        load("old")
    assert "backend" not in str(refused.value)


def test_what_an_extension_prints_while_it_loads_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    load("noisy")
    assert capsys.readouterr() == ("", "import\ncreate\n")
