"""The cases of backend discovery and selection; each number is one situation."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from core_engine.backends.discovery import FindingState
from core_engine.backends.selection import Selection, select_backend
from core_engine.errors import (
    AmbiguousBackend,
    ApiVersionError,
    BackendBlocked,
    BackendLoadError,
    BackendNotFound,
    BackendUnavailable,
    ConfigError,
    ContractError,
)
from core_engine.testing.plugin_site import PluginSite, backend_source

BROKEN = "import no_such_package"


def select(flag: str | None = None, *, serve: bool = False, **environment: str) -> Selection:
    return select_backend(flag, environment, serve=serve)


def states(selection: Selection) -> dict[str, FindingState]:
    return {other.name: other.state for other in selection.passed_over}


def test_case_01_no_plugin_installed_gives_cpu_without_a_warning(site: PluginSite) -> None:
    selection = select()
    assert selection.backend.name == "cpu"
    assert selection.passed_over == ()
    assert selection.warnings == ()


def test_case_02_one_available_plugin_is_chosen(site: PluginSite) -> None:
    site.add_backend("tpu")
    selection = select()
    assert selection.backend.name == "tpu"
    assert states(selection) == {"cpu": FindingState.AVAILABLE}


def test_case_03_no_device_gives_cpu_and_the_reason(site: PluginSite) -> None:
    site.add_backend("tpu", backend_source("tpu", state="unavailable", reason="no /dev/accel0"))
    selection = select()
    assert selection.backend.name == "cpu"
    assert selection.warnings == ()
    assert "passed over tpu (unavailable): no /dev/accel0" in selection.lines()


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


def test_case_08_cpu_by_name_never_imports_the_accelerators_module(site: PluginSite) -> None:
    site.add_backend("tpu")
    selection = select(CORE_ENGINE_BACKEND="cpu")
    assert selection.backend.name == "cpu"
    assert "tpu_plugin" not in sys.modules
    assert states(selection) == {"tpu": FindingState.NOT_LOADED}


def test_case_09_a_named_backend_imports_no_other(site: PluginSite) -> None:
    site.add_backend("tpu")
    site.add_backend("cuda", backend_source("cuda", priority=200))
    selection = select(CORE_ENGINE_BACKEND="tpu")
    assert selection.backend.name == "tpu"
    assert "tpu_plugin" in sys.modules
    assert "cuda_plugin" not in sys.modules


def test_case_10_unknown_name_lists_the_names_and_suggests_the_nearest(site: PluginSite) -> None:
    site.add_backend("tpu")
    with pytest.raises(BackendNotFound, match=r"'tpuu' .*Did you mean 'tpu'\? Installed are cpu, tpu"):
        select(CORE_ENGINE_BACKEND="tpuu")


def test_case_11_named_backend_without_hardware_is_unavailable_with_the_reason(site: PluginSite) -> None:
    site.add_backend("tpu", backend_source("tpu", state="unavailable", reason="no /dev/accel0"))
    with pytest.raises(BackendUnavailable, match=r"no /dev/accel0.*CORE_ENGINE_BACKEND=tpu"):
        select(CORE_ENGINE_BACKEND="tpu")


@pytest.mark.parametrize("value", ["", "auto", " "])
def test_case_12_empty_and_auto_choose_automatically(site: PluginSite, value: str) -> None:
    site.add_backend("tpu")
    assert select(CORE_ENGINE_BACKEND=value).backend.name == "tpu"
    assert select(value).backend.name == "tpu"


def test_case_13_the_flag_wins_over_the_variable_and_says_so(
    site: PluginSite, caplog: pytest.LogCaptureFixture
) -> None:
    site.add_backend("tpu")
    selection = select("cpu", CORE_ENGINE_BACKEND="tpu")
    with caplog.at_level(logging.INFO, logger="core_engine"):
        selection.log()
    assert selection.backend.name == "cpu"
    assert "--backend cpu, which overrides CORE_ENGINE_BACKEND=tpu" in caplog.text


def test_the_flag_auto_overrides_a_name_in_the_variable(site: PluginSite) -> None:
    site.add_backend("tpu")
    selection = select("auto", CORE_ENGINE_BACKEND="cpu")
    assert selection.backend.name == "tpu"
    assert "overrides CORE_ENGINE_BACKEND=cpu" in selection.reason


def test_case_14_the_highest_priority_wins(site: PluginSite) -> None:
    site.add_backend("aaa", backend_source("aaa", priority=50))
    site.add_backend("bbb", backend_source("bbb", priority=100))
    assert select().backend.name == "bbb"


def test_case_14_equal_top_priority_is_ambiguous_whatever_the_order_of_the_path(tmp_path: Path) -> None:
    one, two = PluginSite(tmp_path / "one"), PluginSite(tmp_path / "two")
    one.add_backend("aaa")
    two.add_backend("bbb")
    messages = []
    for first, second in ((one, two), (two, one)):
        with first.visible(second), pytest.raises(AmbiguousBackend, match=r"'aaa'.*'bbb'.*100") as raised:
            select()
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_case_14_a_name_resolves_an_ambiguity(site: PluginSite) -> None:
    site.add_backend("aaa")
    site.add_backend("bbb")
    assert select("bbb").backend.name == "bbb"


def test_case_15_a_plugin_named_cpu_is_refused(site: PluginSite) -> None:
    site.add_backend("cpu", backend_source("cpu", priority=500))
    selection = select()
    assert selection.backend.entry.builtin
    assert states(selection) == {"cpu": FindingState.NAME_RESERVED}
    assert "cpu_plugin" not in sys.modules
    assert "core-engine-cpu 1.0" in selection.warnings[0]
    assert select("cpu").backend.entry.builtin


def test_case_16_allow_list_blocks_the_only_accelerator_before_its_import(site: PluginSite) -> None:
    site.add_backend("tpu")
    site.add_backend("npu", backend_source("npu", state="unavailable"))
    selection = select(CORE_ENGINE_PLUGINS="npu")
    assert selection.backend.name == "cpu"
    assert states(selection)["tpu"] is FindingState.BLOCKED
    assert "tpu_plugin" not in sys.modules


def test_case_16_allow_list_naming_an_unknown_plugin_is_a_warning(site: PluginSite) -> None:
    site.add_backend("tpu")
    selection = select(CORE_ENGINE_PLUGINS="tpu, tpuu")
    assert selection.backend.name == "tpu"
    [warning] = selection.warnings
    assert "CORE_ENGINE_PLUGINS lists 'tpuu'" in warning
    assert "Did you mean 'tpu'?" in warning


def test_case_16_selected_backend_outside_the_allow_list_names_both_variables(site: PluginSite) -> None:
    site.add_backend("tpu")
    site.add_backend("cuda")
    with pytest.raises(BackendBlocked, match=r"CORE_ENGINE_PLUGINS=cuda.*CORE_ENGINE_BACKEND"):
        select(CORE_ENGINE_BACKEND="tpu", CORE_ENGINE_PLUGINS="cuda")
    assert "tpu_plugin" not in sys.modules


def test_an_empty_allow_list_allows_all(site: PluginSite) -> None:
    site.add_backend("tpu")
    assert select(CORE_ENGINE_PLUGINS="").backend.name == "tpu"


@pytest.mark.parametrize(
    ("api", "message"),
    [("1.0", r"plugin API 1\.0, this core serves 0\.1"), ("0.2", "upgrade core-engine")],
    ids=["newer-major", "newer-minor"],
)
def test_case_17_a_newer_api_is_refused_and_cpu_works(site: PluginSite, api: str, message: str) -> None:
    site.add_backend("tpu", backend_source("tpu", api=api))
    selection = select()
    assert selection.backend.name == "cpu"
    assert states(selection) == {"tpu": FindingState.API_REFUSED}
    with pytest.raises(ApiVersionError, match=message):
        select("tpu")


@pytest.mark.parametrize("api", ["٠.١", f"{'9' * 5000}.1", "0.1 ", "0.1.0"])
def test_case_17_what_is_no_version_is_refused(site: PluginSite, api: str) -> None:
    site.add_backend("tpu", backend_source("tpu", api=api))
    with pytest.raises(ApiVersionError, match="states no plugin API version"):
        select("tpu")


@pytest.mark.parametrize("name", ["", "two words", "a,b", "--json", "a/b"])
def test_a_name_that_cannot_be_asked_for_is_refused(site: PluginSite, name: str) -> None:
    site.add_distribution(
        "core-engine-odd", {"core_engine.backends": {name: "odd_plugin"}}, {"odd_plugin": "raise SystemExit"}
    )
    assert states(select()) == {name: FindingState.CONTRACT_BROKEN}


@pytest.mark.parametrize(("asked", "meant"), [("TPU", "tpu"), ("AUTO", "auto")])
def test_a_name_in_another_case_is_not_found_but_suggested(site: PluginSite, asked: str, meant: str) -> None:
    site.add_backend("tpu")
    with pytest.raises(BackendNotFound, match=f"Did you mean '{meant}'"):
        select(asked)


def test_a_module_that_replaces_itself_by_something_else_is_refused(
    site: PluginSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "replaced_plugin", raising=False)  # and again after the test
    site.add_backend("replaced", "import sys\nsys.modules[__name__] = 3\n")
    with pytest.raises(ContractError, match="is 3 of type int; it must be a module"):
        select("replaced")


def test_case_17_an_older_minor_loads(site: PluginSite) -> None:
    site.add_backend("tpu", backend_source("tpu", api="0.0"))
    assert select().backend.name == "tpu"


def test_case_17_a_plugin_that_states_no_api_is_refused(site: PluginSite) -> None:
    site.add_backend("tpu", backend_source("tpu", extra="del CORE_ENGINE_API"))
    with pytest.raises(ApiVersionError, match="states no plugin API version"):
        select("tpu")


def test_case_17_the_api_is_checked_before_any_hook_is_called(site: PluginSite) -> None:
    extra = """
    CALLS = []
    @hookimpl
    def backend_info():
        CALLS.append("backend_info")
    """
    site.add_backend("tpu", backend_source("tpu", api="9.0", extra=extra))
    select()
    assert sys.modules["tpu_plugin"].CALLS == []


def test_case_18_a_hook_may_take_fewer_arguments(site: PluginSite) -> None:
    extra = """
    @hookimpl
    def detect():
        device = DeviceInfo(index=0, name="unseen")
        return Detection(state=DetectionState.AVAILABLE, reason="without a look", devices=(device,))
    """
    site.add_backend("tpu", backend_source("tpu", extra=extra))
    assert select().detection.reason == "without a look"


@pytest.mark.parametrize(
    "signature",
    ["probe, extra", "probe=None", "*, probe", "*probe", "**probe"],
)
def test_case_18_a_hook_with_other_arguments_breaks_the_contract_and_none_is_called(
    site: PluginSite, signature: str
) -> None:
    extra = f"""
    CALLS = []
    @hookimpl
    def backend_info():
        CALLS.append("backend_info")
    @hookimpl
    def detect({signature}):
        CALLS.append("detect")
    """
    site.add_backend("tpu", backend_source("tpu", extra=extra))
    selection = select()
    assert states(selection) == {"tpu": FindingState.CONTRACT_BROKEN}
    assert sys.modules["tpu_plugin"].CALLS == []
    with pytest.raises(ContractError, match="detect"):
        select("tpu")


def test_case_19_a_missing_required_hook_is_refused_before_detection(site: PluginSite) -> None:
    extra = """
    CALLS = []
    @hookimpl
    def detect(probe):
        CALLS.append("detect")
    del plan_workers, create_worker
    """
    site.add_backend("tpu", backend_source("tpu", extra=extra))
    with pytest.raises(ContractError, match="required hooks create_worker, plan_workers"):
        select("tpu")
    assert sys.modules["tpu_plugin"].CALLS == []


def test_a_marked_function_that_is_no_hook_is_refused(site: PluginSite) -> None:
    extra = """
    @hookimpl
    def check_confg(config):
        return ()
    """
    site.add_backend("tpu", backend_source("tpu", extra=extra))
    with pytest.raises(ContractError, match=r"'check_confg'.*Did you mean 'check_config'\?"):
        select("tpu")


def test_a_hook_of_a_newer_api_may_be_marked_optional(site: PluginSite) -> None:
    extra = """
    @hookimpl(optionalhook=True)
    def warm_start(config):
        return True
    """
    site.add_backend("tpu", backend_source("tpu", extra=extra))
    assert select().backend.name == "tpu"


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


@pytest.mark.parametrize(
    "value",
    [
        "True",
        "None",
        "Detection(state='available', reason='')",
        "Detection(state=DetectionState.AVAILABLE, reason='', devices=('one',))",
    ],
)
def test_case_20_detect_that_returns_the_wrong_type_breaks_the_contract(site: PluginSite, value: str) -> None:
    extra = f"""
    @hookimpl
    def detect(probe):
        return {value}
    """
    site.add_backend("tpu", backend_source("tpu", extra=extra))
    assert states(select()) == {"tpu": FindingState.CONTRACT_BROKEN}
    with pytest.raises(ContractError, match="'detect' must return"):
        select("tpu")


def test_case_23_a_by_name_only_backend_is_used_only_when_named(site: PluginSite) -> None:
    site.add_backend("sim", backend_source("sim", state="by-name-only"))
    assert select().backend.name == "cpu"
    assert select("sim").backend.name == "sim"


def test_case_23_serve_refuses_the_automatic_fall_to_cpu_and_says_how_to_allow_it(site: PluginSite) -> None:
    site.add_backend("tpu", BROKEN)
    with pytest.raises(BackendLoadError, match=r"no_such_package.*--backend cpu or CORE_ENGINE_BACKEND=cpu"):
        select(serve=True)
    assert select(serve=True, CORE_ENGINE_BACKEND="cpu").backend.name == "cpu"


def test_case_23_serve_takes_cpu_where_no_plugin_is_broken(site: PluginSite) -> None:
    site.add_backend("tpu", backend_source("tpu", state="unavailable"))
    assert select(serve=True).backend.name == "cpu"


def test_case_27_an_uninstalled_plugin_is_forgotten_by_the_next_start(site: PluginSite) -> None:
    code = "from core_engine.backends.selection import select_backend; print(select_backend().backend.name)"
    site.add_backend("tpu")
    assert site.run(code).stdout == "tpu\n"
    site.uninstall("tpu")
    assert site.run(code).stdout == "cpu\n"


def test_entry_points_own_name_must_be_the_backends(site: PluginSite) -> None:
    site.add_backend("tpu", backend_source("other"))
    with pytest.raises(ContractError, match=r"calls itself 'other'.*'tpu'"):
        select("tpu")


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


@pytest.mark.parametrize("reverse", [False, True])
def test_two_distributions_with_one_name_make_it_unusable(tmp_path: Path, reverse: bool) -> None:
    one, two = PluginSite(tmp_path / "one"), PluginSite(tmp_path / "two")
    one.add_distribution("vendor-one", {"core_engine.backends": {"tpu": "one_plugin"}})
    two.add_distribution("vendor-two", {"core_engine.backends": {"tpu": "two_plugin"}})
    first, second = (two, one) if reverse else (one, two)
    with first.visible(second):
        assert states(select()) == {"tpu": FindingState.DUPLICATE}
        with pytest.raises(AmbiguousBackend, match=r"vendor-one 1\.0 .*vendor-two 1\.0 .*uninstall"):
            select("tpu")


def test_a_stale_dist_info_of_another_version_makes_the_name_unusable(site: PluginSite) -> None:
    site.add_backend("tpu", version="1.0")
    site.add_backend("tpu", version="2.0")
    with pytest.raises(AmbiguousBackend, match=r"core-engine-tpu 1\.0 .*core-engine-tpu 2\.0 "):
        select("tpu")


def test_the_same_plugin_seen_twice_on_the_path_is_one_plugin(tmp_path: Path) -> None:
    one, two = PluginSite(tmp_path / "one"), PluginSite(tmp_path / "two")
    one.add_backend("tpu")
    two.add_backend("tpu")
    with one.visible(two):
        assert select().backend.name == "tpu"


def test_unreadable_metadata_of_a_stranger_harms_nobody(site: PluginSite) -> None:
    site.add_backend("tpu")
    broken = site.folder / "stranger-1.0.dist-info"
    broken.mkdir()
    (broken / "entry_points.txt").write_text("[core_engine.backends]\nnonsense without a sign\n")
    assert select().backend.name == "tpu"


def test_an_entry_point_that_names_an_attribute_is_refused(site: PluginSite) -> None:
    site.add_distribution("vendor", {"core_engine.backends": {"tpu": "tpu_plugin:Backend"}})
    with pytest.raises(ContractError, match="does not name a module"):
        select("tpu")


def test_priority_zero_ties_with_cpu(site: PluginSite) -> None:
    site.add_backend("npu", backend_source("npu", priority=0))
    with pytest.raises(AmbiguousBackend, match=r"'cpu'.*'npu'"):
        select()


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


@pytest.mark.parametrize("priority", ["'high'", "float('nan')", "True", "1.0", "None"])
def test_a_priority_is_a_whole_number(site: PluginSite, priority: str) -> None:
    source = backend_source("tpu").replace("priority=100", f"priority={priority}")
    site.add_backend("tpu", source)
    selection = select()
    assert selection.backend.name == "cpu"
    assert states(selection) == {"tpu": FindingState.CONTRACT_BROKEN}
    with pytest.raises(
        ContractError, match=r"'tpu' .*'backend_info' .*BackendInfo\.priority of type int, got"
    ):
        select("tpu")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("reason=7", r"Detection\.reason of type str, got 7 of type int"),
        ("devices=[]", r"Detection\.devices of type tuple"),
        ("devices=(DeviceInfo(index='0', name='a'),)", r"Detection\.devices\[0\]\.index of type int"),
        ("devices=(DeviceInfo(index=0, name=b'a'),)", r"devices\[0\]\.name of type str"),
        ("devices=(DeviceInfo(index=0, name='a', memory_bytes=1.5),)", r"memory_bytes of type int \| None"),
        (
            "devices=(DeviceInfo(index=0, name='a', details={'sm': 9}),)",
            r"details\['sm'\] of type str, got 9",
        ),
        ("devices=(DeviceInfo(index=0, name='a', details=None),)", r"details of type Mapping\[str, str\]"),
        ("devices=(DeviceInfo(index=0, name='a'), DeviceInfo(index=0, name='b'))", "distinct indices"),
        ("devices=(DeviceInfo(index=-1, name='a'),)", "distinct indices from 0"),
        ("devices=()", "at least one device where the state is available"),
    ],
)
def test_every_field_of_a_detection_is_checked(site: PluginSite, fields: str, message: str) -> None:
    extra = f"""
    @hookimpl
    def detect():
        sound = dict(state=DetectionState.AVAILABLE, reason="", devices=(DeviceInfo(index=0, name="a"),))
        return Detection(**dict(sound, {fields}))
    """
    site.add_backend("tpu", backend_source("tpu", extra=extra))
    assert states(select()) == {"tpu": FindingState.CONTRACT_BROKEN}
    with pytest.raises(ContractError, match=rf"'detect' must return .*{message}"):
        select("tpu")


@pytest.mark.parametrize("name", ["auto", "Auto", "CPU"])
def test_case_15_no_plugin_may_take_a_name_with_a_meaning_of_its_own(site: PluginSite, name: str) -> None:
    site.add_backend(name, backend_source(name, priority=500))
    selection = select()
    assert selection.backend.entry.builtin
    assert states(selection) == {name: FindingState.NAME_RESERVED}
    assert f"{name}_plugin" not in sys.modules
    assert f"the name {name!r} belongs to" in selection.warnings[0]


def test_case_21_names_that_differ_only_in_case_are_refused_both(site: PluginSite) -> None:
    site.add_backend("tpu")
    site.add_backend("TPU", backend_source("TPU", priority=200))
    selection = select()
    assert selection.backend.name == "cpu"
    assert states(selection) == {"TPU": FindingState.DUPLICATE, "tpu": FindingState.DUPLICATE}
    for name in ("tpu", "TPU"):
        with pytest.raises(
            AmbiguousBackend, match=rf"'{name}', but for case: .*core-engine-tpu 1\.0 \(TPU_plugin"
        ):
            select(name)
