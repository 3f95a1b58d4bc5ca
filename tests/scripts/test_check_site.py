"""A checkout becomes an installation for the processes that see one folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import check_site
import pytest
from check_site import REPOSITORY, collect_wheels, make_site, search_path


def make_wheel(folder: Path, name: str, version: str, needs: str = "") -> None:
    info = f"{name}-{version}.dist-info"
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": text + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, content in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, content)


def test_both_distributions_and_their_entry_points_are_found(tmp_path: Path) -> None:
    make_site(tmp_path, None)
    found = {found.name: found for found in metadata.distributions(path=[str(tmp_path)])}
    assert found.keys() == {"core-engine", "core-engine-cuda"}
    assert found["core-engine"].version == found["core-engine-cuda"].version == "0.1.0.dev0"
    (entry,) = found["core-engine-cuda"].entry_points.select(group="core_engine.backends")
    assert (entry.name, entry.value) == ("cuda", "core_engine_cuda.plugin")
    groups = {entry.group for entry in found["core-engine"].entry_points}
    assert groups == {"console_scripts", "core_engine.extensions"}


def test_the_checkout_comes_before_what_is_installed(tmp_path: Path) -> None:
    make_site(tmp_path, None)
    code = "import core_engine, core_engine_cuda; print(core_engine.__file__, core_engine_cuda.__file__)"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": search_path(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    ).stdout.split()
    assert told == [
        str(REPOSITORY / "core_engine" / "__init__.py"),
        str(REPOSITORY / "plugins" / "cuda_backend" / "src" / "core_engine_cuda" / "__init__.py"),
    ]


def test_what_is_missing_is_unpacked_with_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    make_wheel(wheels, "wanted_thing", "2.0", "needed_thing>=1")
    make_wheel(wheels, "needed_thing", "1.5")
    monkeypatch.setattr(check_site, "_requirements", lambda: ["wanted-thing>=1", "absent-thing>=3", "numpy"])

    assert make_site(site, None) == ["wanted-thing>=1", "absent-thing>=3"]
    assert make_site(site, wheels) == ["absent-thing>=3"]

    assert {"wanted_thing.py", "needed_thing.py"} <= {path.name for path in site.iterdir()}


def test_a_version_that_is_too_old_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_site, "_requirements", lambda: ["numpy>=1000", "pytest; python_version < '3'"])
    assert make_site(tmp_path, None) == ["numpy>=1000"]


def test_wheels_are_collected_for_the_other_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def record(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(check_site.subprocess, "run", record)
    collect_wheels(tmp_path, "3.12", "aarch64", [])
    command, alone = commands
    for each in commands:
        assert each[each.index("--python-version") + 1] == "3.12"
        assert "manylinux_2_28_aarch64" in each
        assert not any(text.startswith(("torch", "triton", "core-engine")) for text in each)
    assert "--no-deps" not in command
    assert any(text.startswith("msgspec") for text in command)
    # Of accelerate's needs torch must not come.
    assert not any(text.startswith("accelerate") for text in command)
    assert "--no-deps" in alone
    assert any(text.startswith("accelerate") for text in alone)
