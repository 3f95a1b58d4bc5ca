"""A plugin that fails leaves a reason behind, and everybody else's backends. A number is one situation."""

from __future__ import annotations

import logging

import pytest
from backends.selecting import select, states

from core_engine.backends.discovery import FindingState
from core_engine.errors import BackendLoadError, ConfigError
from core_engine.testing.plugin_site import PluginSite, backend_source

BROKEN = "import no_such_package"


def test_case_04_import_error_is_a_warning_and_cpu_works(
    site: PluginSite, caplog: pytest.LogCaptureFixture
) -> None:
    site.add_backend("tpu", BROKEN)
    selection = select()
    with caplog.at_level(logging.INFO, logger="core_engine"):
        selection.log()
    assert selection.backend.name == "cpu"
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    for part in ("'tpu'", "core-engine-tpu 1.0", "no_such_package"):
        assert part in warning.getMessage()


def test_case_05_import_error_of_the_named_backend_is_an_error(site: PluginSite) -> None:
    site.add_backend("tpu", BROKEN)
    with pytest.raises(BackendLoadError, match=r"'tpu' of core-engine-tpu 1\.0 .*no_such_package"):
        select(CORE_ENGINE_BACKEND="tpu")


def test_case_06_import_error_is_fatal_in_strict_mode(site: PluginSite) -> None:
    site.add_backend("tpu", BROKEN)
    with pytest.raises(BackendLoadError, match=r"no_such_package.*CORE_ENGINE_STRICT_PLUGINS=1"):
        select(CORE_ENGINE_STRICT_PLUGINS="1")


def test_strict_mode_must_be_a_switch(site: PluginSite) -> None:
    with pytest.raises(ConfigError, match="CORE_ENGINE_STRICT_PLUGINS: 'very' is neither"):
        select(CORE_ENGINE_STRICT_PLUGINS="very")


def test_strict_mode_accepts_a_device_that_is_not_there(site: PluginSite) -> None:
    site.add_backend("tpu", backend_source("tpu", state="unavailable"))
    assert select(CORE_ENGINE_STRICT_PLUGINS="1").backend.name == "cpu"


@pytest.mark.parametrize(
    "source", ["import sys; sys.exit(3)", "raise RuntimeError('driver')", "raise BaseException('driver')"]
)
def test_case_07_exit_or_exception_on_import_is_like_an_import_error(site: PluginSite, source: str) -> None:
    site.add_backend("tpu", source)
    selection = select()
    assert selection.backend.name == "cpu"
    assert states(selection) == {"tpu": FindingState.LOAD_FAILED}
    with pytest.raises(BackendLoadError):
        select("tpu")


def test_keyboard_interrupt_on_import_is_the_users_own(site: PluginSite) -> None:
    site.add_backend("tpu", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        select()


@pytest.mark.parametrize("statement", ["raise OSError('driver crashed')", "import sys; sys.exit(1)"])
def test_case_20_detect_that_raises_is_shown_and_others_are_considered(
    site: PluginSite, statement: str
) -> None:
    extra = f"""
    @hookimpl
    def detect(probe):
        {statement}
    """
    site.add_backend("tpu", backend_source("tpu", priority=200, extra=extra))
    site.add_backend("npu")
    selection = select()
    assert selection.backend.name == "npu"
    assert states(selection)["tpu"] is FindingState.DETECT_FAILED


def test_case_23_serve_refuses_the_automatic_fall_to_cpu_and_says_how_to_allow_it(site: PluginSite) -> None:
    site.add_backend("tpu", BROKEN)
    with pytest.raises(BackendLoadError, match=r"no_such_package.*--backend cpu or CORE_ENGINE_BACKEND=cpu"):
        select(serve=True)
    assert select(serve=True, CORE_ENGINE_BACKEND="cpu").backend.name == "cpu"


def test_case_23_serve_takes_cpu_where_no_plugin_is_broken(site: PluginSite) -> None:
    site.add_backend("tpu", backend_source("tpu", state="unavailable"))
    assert select(serve=True).backend.name == "cpu"


@pytest.mark.parametrize("error", ["ConfigError", "ContractError"])
@pytest.mark.parametrize(
    ("hook", "state"), [("backend_info()", "load-failed"), ("detect(probe)", "detect-failed")]
)
def test_an_error_of_cores_own_raised_by_a_plugin_harms_no_other(
    site: PluginSite, error: str, hook: str, state: str
) -> None:
    extra = f"""
    from core_engine.plugin import {error}
    @hookimpl
    def {hook}:
        raise {error}("not now")
    """
    site.add_backend("tpu", backend_source("tpu", extra=extra))
    selection = select()
    assert states(selection) == {"tpu": state}
    assert "core-engine-tpu 1.0" in selection.warnings[0]


def test_unreadable_metadata_of_a_stranger_harms_nobody(site: PluginSite) -> None:
    site.add_backend("tpu")
    broken = site.folder / "stranger-1.0.dist-info"
    broken.mkdir()
    (broken / "entry_points.txt").write_text("[core_engine.backends]\nnonsense without a sign\n")
    assert select().backend.name == "tpu"


@pytest.mark.parametrize("hook", ["backend_info", "detect"])
def test_case_20_a_hook_that_raises_outside_of_exception_is_a_failure_like_any_other(
    site: PluginSite, hook: str
) -> None:
    extra = f"""
    class Abort(BaseException):
        pass
    @hookimpl
    def {hook}():
        raise Abort("driver")
    """
    site.add_backend("tpu", backend_source("tpu", extra=extra))
    assert select().backend.name == "cpu"
    with pytest.raises(BackendLoadError, match=f"'{hook}' raised Abort: driver"):
        select("tpu")


def test_an_error_without_a_text_of_its_own_is_named_by_its_type(site: PluginSite) -> None:
    source = """
    class Abort(BaseException):
        def __str__(self):
            raise Abort
    raise Abort
    """
    site.add_backend("tpu", source)
    with pytest.raises(BackendLoadError, match="failed to import: Abort"):
        select("tpu")
