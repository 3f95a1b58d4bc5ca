from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core_engine.testing.plugin_site import PluginSite, backend_source

Doctor = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def site(tmp_path: Path) -> PluginSite:
    return PluginSite(tmp_path / "site")


@pytest.fixture
def doctor(site: PluginSite) -> Doctor:
    """Run ``core-engine doctor --json`` and return the exit code and the object."""

    def run(*arguments: str, **environment: str) -> tuple[int, dict[str, Any]]:
        finished = site.run_command("doctor", "--json", *arguments, environment=environment)
        return finished.returncode, json.loads(finished.stdout)

    return run


def test_a_clean_installation(doctor: Doctor) -> None:
    code, report = doctor()
    assert code == 0
    assert report["selected"] == "cpu"
    assert "no other backend is available" in report["choice"]
    assert report["warnings"] == report["duplicates"] == report["torch_extensions"] == []


def test_case_03_the_reason_of_a_missing_device_is_shown(site: PluginSite) -> None:
    site.add_backend("tpu", backend_source("tpu", state="unavailable", reason="no /dev/accel0"))
    assert "state: unavailable: no /dev/accel0" in site.run_command("doctor").stdout


def test_a_failed_plugin_is_a_warning_and_exit_code_1(site: PluginSite, doctor: Doctor) -> None:
    site.add_backend("tpu", "import no_such_package")
    code, report = doctor()
    assert code == 1
    assert "no_such_package" in report["warnings"][0]


def test_an_unusable_choice_is_exit_code_2(doctor: Doctor) -> None:
    code, report = doctor(CORE_ENGINE_BACKEND="tpu")
    assert code == 2
    assert report["selected"] is None
    assert "'tpu'" in report["choice"]


def test_variables_are_listed_with_their_origin_and_secrets_are_not_shown(doctor: Doctor) -> None:
    _, report = doctor(CORE_ENGINE_BACKEND="cpu", CORE_ENGINE_API_KEY="hunter2")
    variables = {variable.pop("name"): variable for variable in report["variables"]}
    assert variables["CORE_ENGINE_BACKEND"] == {"value": "cpu", "origin": "environment"}
    assert variables["CORE_ENGINE_PLUGINS"] == {"value": None, "origin": "default"}
    assert variables["CORE_ENGINE_API_KEY"]["value"] == "(set, not shown)"


def test_versions_are_read_without_importing(site: PluginSite, doctor: Doctor) -> None:
    site.add_distribution("torch", {}, version="9.9")
    _, report = doctor()
    assert report["versions"]["torch"] == "9.9"
    assert {"core-engine", "plugin API", "python", "transformers"} <= set(report["versions"])


def test_a_backends_own_facts_are_shown(site: PluginSite, doctor: Doctor) -> None:
    extra = "@hookimpl\ndef doctor_rows(probe):\n    return (('driver', '535'),)\n"
    site.add_backend("tpu", backend_source("tpu", extra=extra))
    _, report = doctor()
    assert report["facts"]["tpu"] == {"driver": "535"}
    assert "  driver: 535" in site.run_command("doctor").stdout


def test_facts_that_cannot_be_read_are_a_fault_of_the_plugin(site: PluginSite, doctor: Doctor) -> None:
    extra = "@hookimpl\ndef doctor_rows(probe):\n    raise OSError('driver gone')\n"
    site.add_backend("tpu", backend_source("tpu", extra=extra))
    code, report = doctor()
    assert code == 1
    assert "driver gone" in report["faults"]["tpu"]


def test_extensions_are_listed_with_their_state(site: PluginSite, doctor: Doctor) -> None:
    group = "core_engine.extensions"
    site.add_distribution("vendor", {group: {"one": "vendor:One", "two": "vendor:Two"}})
    code, report = doctor(CORE_ENGINE_EXTENSIONS="one", CORE_ENGINE_PLUGINS="one")
    rows = {row["name"]: (row["state"], row["requested"]) for row in report["extensions"]}
    assert rows == {"one": ("installed", True), "two": ("blocked", False)}
    assert code == 0


@pytest.mark.parametrize("allowed", ["", "other"], ids=["missing", "blocked"])
def test_a_requested_extension_that_cannot_be_used_is_exit_code_2(
    site: PluginSite, doctor: Doctor, allowed: str
) -> None:
    if allowed:
        site.add_distribution("vendor", {"core_engine.extensions": {"one": "vendor:One"}})
    code, _ = doctor(CORE_ENGINE_EXTENSIONS="one", CORE_ENGINE_PLUGINS=allowed)
    assert code == 2


def test_plugins_seen_more_than_once_are_listed_with_their_folders(site: PluginSite, doctor: Doctor) -> None:
    site.add_backend("tpu", version="1.0")
    site.add_backend("tpu", version="2.0")
    code, report = doctor()
    assert code == 1
    [line] = report["duplicates"]
    for part in ("core-engine-tpu 1.0", "core-engine-tpu 2.0", str(site.folder.resolve())):
        assert part in line


def test_case_24_a_broken_torch_extension_is_named(site: PluginSite) -> None:
    site.add_distribution(
        "torch-npx",
        {"torch.backends": {"npx": "torch_npx:autoload"}},
        {"torch_npx": "raise OSError('libnpx.so: cannot open')"},
    )
    site.add_distribution(
        "torch-fine",
        {"torch.backends": {"fine": "torch_fine:autoload"}},
        {"torch_fine": "def autoload(): pass"},
    )
    code = "import sys\nfrom core_engine.cli.main import main\nsys.exit(main(['doctor', '--json']))"
    finished = site.run(code, whole_environment=True)
    rows = {row["name"]: row for row in json.loads(finished.stdout)["torch_extensions"]}
    assert finished.returncode == 1
    assert "libnpx.so: cannot open" in rows["npx"]["problem"]
    assert rows["npx"]["distribution"] == "torch-npx"
    assert rows["fine"]["problem"] is None


def test_the_features_of_a_model_are_those_that_a_start_would_log(on_model: Callable[..., Any]) -> None:
    shell = on_model("doctor", "--json")
    rows = {row["feature"]: (row["state"], row["reason"]) for row in shell.json["model"]["features"]["rows"]}
    assert shell.code in (0, 1)
    assert rows["scheduler"] == ("unified", "the default")
    assert rows["chunked_prefill"] == ("on", "")
    assert rows["lora"][0] == "off"
    shell = on_model("doctor", "--scheduler", "simple")
    assert "chunked_prefill off scheduler simple does without it" in " ".join(shell.out.split())


def test_the_features_of_a_model_are_found_without_opening_the_device(
    on_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from core_engine.backends.backend import Backend

    def refuse(*_: object) -> None:
        raise AssertionError("a worker was made")

    monkeypatch.setattr(Backend, "create_worker", refuse)
    assert "scheduler" in on_model("doctor").out


def test_what_a_model_cannot_get_is_an_error_and_exit_code_2(on_model: Callable[..., Any]) -> None:
    shell = on_model("doctor", "--scheduler", "simple", "--enable-prefix-caching")
    assert shell.code == 2
    assert "ERROR: UnsupportedFeature: scheduler 'simple' was asked for" in shell.out
    assert "versions" in shell.out


def test_a_model_that_is_not_there_does_not_hide_the_rest(doctor: Doctor) -> None:
    code, report = doctor("/no/such/model")
    assert code == 2
    assert report["model"]["error"].startswith("ModelNotFound")
    assert report["selected"] == "cpu"


def test_without_a_model_there_are_no_features(doctor: Doctor) -> None:
    assert doctor()[1]["model"] is None
