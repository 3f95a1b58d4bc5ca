"""Which names a backend may have, and what happens when two have one. A number is one situation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from backends.selecting import select, states

from core_engine.backends.discovery import FindingState
from core_engine.errors import AmbiguousBackend, BackendNotFound
from core_engine.testing.plugin_site import PluginSite, backend_source


def test_case_15_a_plugin_named_cpu_is_refused(site: PluginSite) -> None:
    site.add_backend("cpu", backend_source("cpu", priority=500))
    selection = select()
    assert selection.backend.entry.builtin
    assert states(selection) == {"cpu": FindingState.NAME_RESERVED}
    assert "cpu_plugin" not in sys.modules
    assert "core-engine-cpu 1.0" in selection.warnings[0]
    assert select("cpu").backend.entry.builtin


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
