from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core_engine.testing.plugin_site import PluginSite, backend_source

Listing = Callable[..., tuple[int, dict[str, dict[str, Any]]]]


@pytest.fixture
def site(tmp_path: Path) -> PluginSite:
    return PluginSite(tmp_path / "site")


@pytest.fixture
def listing(site: PluginSite) -> Listing:
    """Run ``core-engine backends --json`` and return the exit code and the rows by name."""

    def run(*arguments: str, **environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
        finished = site.run_command("backends", "--json", *arguments, environment=environment)
        return finished.returncode, {row["name"]: row for row in json.loads(finished.stdout)}

    return run


def test_a_row_says_everything_about_a_plugin(site: PluginSite, listing: Listing) -> None:
    site.add_backend("tpu")
    code, rows = listing()
    seconds = rows["tpu"].pop("import_seconds")
    assert code == 0
    assert seconds > 0
    assert rows["tpu"] == {
        "name": "tpu",
        "distribution": "core-engine-tpu",
        "version": "1.0",
        "entry_point": "tpu_plugin",
        "api": "0.1",
        "host_api": "0.1",
        "state": "available",
        "reason": "found by the test",
        "priority": 100,
        "devices": [{"index": 0, "name": "device 0", "memory_bytes": None, "details": {}}],
        "heavy_modules": [],
        "selected": True,
    }
    assert rows["cpu"]["selected"] is False


def test_rows_come_chosen_first_then_by_priority_and_name(site: PluginSite) -> None:
    site.add_backend("wide", backend_source("wide", priority=50))
    site.add_backend("fast", backend_source("fast", priority=90))
    site.add_backend("also", backend_source("also", priority=50))
    site.add_backend("broken", "import no_such_package")
    rows = json.loads(site.run_command("backends", "--json", "--backend", "wide").stdout)
    assert [row["name"] for row in rows] == ["wide", "fast", "also", "cpu", "broken"]


def test_a_plugin_that_failed_gives_exit_code_1(site: PluginSite, listing: Listing) -> None:
    site.add_backend("tpu", "import no_such_package")
    code, rows = listing()
    assert code == 1
    assert rows["tpu"]["state"] == "load-failed"
    assert rows["tpu"]["reason"].startswith("failed to import: ModuleNotFoundError")
    assert rows["cpu"]["selected"] is True


@pytest.mark.parametrize(
    "environment",
    [
        {"CORE_ENGINE_BACKEND": "tpu"},
        {"CORE_ENGINE_BACKEND": "tpuu"},
        {"CORE_ENGINE_STRICT_PLUGINS": "1"},
    ],
)
def test_what_was_asked_for_and_cannot_be_used_gives_exit_code_2(
    site: PluginSite, listing: Listing, environment: dict[str, str]
) -> None:
    site.add_backend("tpu", "import no_such_package")
    code, rows = listing(**environment)
    assert code == 2
    assert not any(row["selected"] for row in rows.values())


def test_the_flag_selects(site: PluginSite, listing: Listing) -> None:
    site.add_backend("tpu")
    code, rows = listing("--backend", "cpu")
    assert code == 0
    assert rows["cpu"]["selected"]
    assert not rows["tpu"]["selected"]


def test_case_16_a_blocked_plugin_is_listed_and_not_imported(site: PluginSite, listing: Listing) -> None:
    site.add_backend("tpu")
    code, rows = listing(CORE_ENGINE_PLUGINS="cpu")
    assert code == 0
    assert (rows["tpu"]["state"], rows["tpu"]["import_seconds"]) == ("blocked", None)


def test_heavy_modules_of_a_light_module_are_named(site: PluginSite, listing: Listing) -> None:
    (site.folder / "triton.py").write_text("")  # any package of that name will do
    site.add_backend("tpu", "import triton\n" + backend_source("tpu"))
    _, rows = listing()
    assert rows["tpu"]["heavy_modules"] == ["triton"]
    assert rows["cpu"]["heavy_modules"] == []


def test_duplicates_name_both_distributions(site: PluginSite, listing: Listing) -> None:
    site.add_distribution("vendor-one", {"core_engine.backends": {"tpu": "one_plugin"}})
    site.add_distribution("vendor-two", {"core_engine.backends": {"tpu": "two_plugin"}})
    code, rows = listing()
    assert code == 1
    assert (rows["tpu"]["state"], rows["tpu"]["distribution"]) == ("duplicate", "vendor-one, vendor-two")


def test_the_table_marks_the_choice_and_says_why(site: PluginSite) -> None:
    site.add_backend("tpu", backend_source("tpu", state="unavailable", reason="no /dev/accel0"))
    lines = site.run_command("backends").stdout.splitlines()
    for column in ("NAME", "STATE", "PRIORITY", "DISTRIBUTION", "ENTRY POINT", "API", "DEVICES", "REASON"):
        assert column in lines[0]
    assert lines[1].startswith("*  cpu ")
    assert lines[2].endswith("no /dev/accel0")
    assert lines[-1].endswith(": no other backend is available")


NOISY = """
print("import")
@hookimpl
def detect():
    print("detect")
    return Detection(state=DetectionState.UNAVAILABLE, reason="")
@hookimpl
def doctor_rows():
    print("rows")
    return ()
"""


@pytest.mark.parametrize("command", ["backends", "doctor"])
def test_what_a_plugin_prints_goes_to_stderr(site: PluginSite, command: str) -> None:
    site.add_backend("tpu", backend_source("tpu", extra=NOISY))
    finished = site.run_command(command, "--json")
    assert json.loads(finished.stdout)
    assert "import\ndetect\n" in finished.stderr


@pytest.mark.parametrize("command", ["backends", "doctor"])
def test_devices_that_are_no_plain_values_do_not_break_the_listing(site: PluginSite, command: str) -> None:
    extra = """
    from types import MappingProxyType
    @hookimpl
    def detect():
        device = DeviceInfo(index=0, name="a", details=MappingProxyType({"b": "c"}))
        return Detection(state=DetectionState.AVAILABLE, reason="", devices=(device,))
    """
    site.add_backend("tpu", backend_source("tpu", extra=extra))
    site.add_backend("npu", backend_source("npu", extra=extra.replace('"c"', "object()")))
    finished = site.run_command(command, "--json")
    report = json.loads(finished.stdout)
    rows = {row["name"]: row for row in (report if command == "backends" else report["backends"])}
    assert rows["tpu"]["devices"][0]["details"] == {"b": "c"}
    assert rows["npu"]["state"] == "contract-broken"


@pytest.mark.parametrize("command", ["backends", "doctor"])
def test_a_plugin_that_raises_outside_of_exception_does_not_break_the_listing(
    site: PluginSite, command: str
) -> None:
    site.add_backend("tpu", "raise BaseException('driver')")
    extra = "@hookimpl\ndef doctor_rows():\n    raise BaseException('driver')\n"
    site.add_backend("npu", backend_source("npu", extra=extra))
    finished = site.run_command(command)
    assert finished.returncode == 1
    assert "Traceback" not in finished.stderr


def test_a_refusal_is_told_in_the_row_and_as_the_error(site: PluginSite) -> None:
    site.add_backend("tpu", backend_source("tpu", state="unavailable", reason="no /dev/accel0"))
    finished = site.run_command("backends", "--backend", "tpu", environment={})
    assert finished.stdout.count("no /dev/accel0") == finished.stderr.count("no /dev/accel0") == 1
    assert finished.stderr.startswith("core-engine: error: backend 'tpu'")
