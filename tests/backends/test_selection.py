"""Which backend is chosen: by priority, flag or variable, and among which. A number is one situation."""

from __future__ import annotations

import logging
import sys

import pytest
from backends.selecting import select, states

from core_engine.backends.discovery import FindingState
from core_engine.errors import AmbiguousBackend, BackendBlocked, BackendUnavailable
from core_engine.testing.plugin_site import PluginSite, backend_source


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


def test_case_14_a_name_resolves_an_ambiguity(site: PluginSite) -> None:
    site.add_backend("aaa")
    site.add_backend("bbb")
    assert select("bbb").backend.name == "bbb"


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


def test_case_23_a_by_name_only_backend_is_used_only_when_named(site: PluginSite) -> None:
    site.add_backend("sim", backend_source("sim", state="by-name-only"))
    assert select().backend.name == "cpu"
    assert select("sim").backend.name == "sim"


def test_case_27_an_uninstalled_plugin_is_forgotten_by_the_next_start(site: PluginSite) -> None:
    code = "from core_engine.backends.selection import select_backend; print(select_backend().backend.name)"
    site.add_backend("tpu")
    assert site.run(code).stdout == "tpu\n"
    site.uninstall("tpu")
    assert site.run(code).stdout == "cpu\n"


def test_priority_zero_ties_with_cpu(site: PluginSite) -> None:
    site.add_backend("npu", backend_source("npu", priority=0))
    with pytest.raises(AmbiguousBackend, match=r"'cpu'.*'npu'"):
        select()
