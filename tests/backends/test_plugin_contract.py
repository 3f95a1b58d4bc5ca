"""What a plugin must state and return before it is considered. A number is one situation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from backends.selecting import select, states

from core_engine.backends.discovery import FindingState
from core_engine.errors import AmbiguousBackend, ApiVersionError, BackendNotFound, ContractError
from core_engine.testing.plugin_site import PluginSite, backend_source


def test_case_10_unknown_name_lists_the_names_and_suggests_the_nearest(site: PluginSite) -> None:
    site.add_backend("tpu")
    with pytest.raises(BackendNotFound, match=r"'tpuu' .*Did you mean 'tpu'\? Installed are cpu, tpu"):
        select(CORE_ENGINE_BACKEND="tpuu")


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


def test_entry_points_own_name_must_be_the_backends(site: PluginSite) -> None:
    site.add_backend("tpu", backend_source("other"))
    with pytest.raises(ContractError, match=r"calls itself 'other'.*'tpu'"):
        select("tpu")


def test_an_entry_point_that_names_an_attribute_is_refused(site: PluginSite) -> None:
    site.add_distribution("vendor", {"core_engine.backends": {"tpu": "tpu_plugin:Backend"}})
    with pytest.raises(ContractError, match="does not name a module"):
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
