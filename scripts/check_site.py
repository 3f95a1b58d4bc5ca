"""A folder for PYTHONPATH that makes this checkout an installation: metadata, and packages that are missing.

Nothing is installed for anybody else: wheels are unpacked into the folder, and beside them lie the entry
points of core-engine and core-engine-cuda, whose code is taken from the checkout.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["REPOSITORY", "collect_wheels", "make_site", "search_path"]

REPOSITORY = Path(__file__).resolve().parents[1]
_PLUGIN = REPOSITORY / "plugins" / "cuda_backend"
_TEST_PACKAGES = ("pytest>=8.4", "pytest-timeout>=2.4", "hypothesis>=6.140")
#: Come with the machine, or not at all: torch is built for its CUDA and brings its Triton.
_OWN = {"torch", "triton", "core-engine", "core-engine-cuda"}
#: Needs torch, which pip would bring, so it is downloaded without what it needs; and that by name.
_BESIDE_TORCH = {"accelerate": ("psutil",)}
#: Versions of the C library that wheels name; pip takes only those that are listed.
_GLIBC = (17, 24, 26, 27, 28, 31, 34, 35)
_ROUNDS = 5


def make_site(folder: Path, wheels: Path | None) -> list[str]:
    """Fill ``folder``; return what is still missing, as requirements."""
    for root, packages in ((REPOSITORY, REPOSITORY), (_PLUGIN, _PLUGIN / "src")):
        _write_metadata(root, packages, folder)
    missing = list(_missing(folder))
    for _ in range(_ROUNDS if wheels is not None else 0):  # what is unpacked may need more
        wanted = [requirement for requirement in missing if _name(requirement) not in _OWN]
        found = [requirement for requirement in wanted if _unpack(requirement, str(wheels), folder)]
        missing = list(_missing(folder))
        if not found or not missing:
            break
    return missing


def search_path(folder: Path) -> str:
    """Return the PYTHONPATH of processes that are to see ``folder`` and the checkout."""
    before = os.environ.get("PYTHONPATH")
    parts = [str(folder), str(REPOSITORY), str(_PLUGIN / "src"), *([before] if before else [])]
    return os.pathsep.join(parts)


def collect_wheels(folder: Path, python_version: str, machine: str, packages: list[str]) -> None:
    """Download wheels for another machine: ``packages`` alone, or by default all but torch, and their needs.

    Raises `SystemExit` with pip's exit code when it fails.
    """
    alone, whole = packages, []
    for text in () if packages else _requirements():
        if _name(text) in _BESIDE_TORCH:
            alone = [*alone, text, *_BESIDE_TORCH[_name(text)]]
        elif _name(text) not in _OWN:
            whole.append(text)
    command = [*_pip("download"), "--only-binary=:all:", "--dest", str(folder)]
    command += ["--python-version", python_version, "--implementation", "cp"]
    for platform in (*(f"manylinux_2_{minor}" for minor in reversed(_GLIBC)), "manylinux2014"):
        command += ["--platform", f"{platform}_{machine}"]
    for requirements in (whole, ["--no-deps", *alone] if alone else []):
        code = subprocess.run([*command, *requirements], stdout=sys.stderr).returncode if requirements else 0
        if code:
            raise SystemExit(code)


def _write_metadata(root: Path, packages: Path, folder: Path) -> None:
    project = _project(root)
    name, version = project["name"], project.get("version")
    if version is None:
        source = (packages / name.replace("-", "_") / "__init__.py").read_text(encoding="utf-8")
        version = re.search(r'^__version__ = "(.+)"', source, re.MULTILINE)[1]  # type: ignore[index]
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    needs = "".join(f"Requires-Dist: {text}\n" for text in project["dependencies"])
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    (info / "METADATA").write_text(text, encoding="utf-8")
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    (info / "top_level.txt").write_text(name.replace("-", "_") + "\n", encoding="utf-8")


def _project(root: Path) -> dict[str, Any]:
    read: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return read


def _requirements() -> list[str]:
    return [*_project(REPOSITORY)["dependencies"], *_project(_PLUGIN)["dependencies"], *_TEST_PACKAGES]


def _missing(folder: Path) -> Iterator[str]:
    """Yield what is needed, and by what is needed, and is neither in ``folder`` nor on this Python's path."""
    requirement_class = _requirement_class()
    path = [str(folder), *sys.path]
    waiting, seen = _requirements(), set()
    while waiting:
        requirement = requirement_class(waiting.pop(0))
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        found = next(iter(metadata.distributions(name=requirement.name, path=path)), None)
        if found is None or not requirement.specifier.contains(found.version, prereleases=True):
            yield f"{requirement.name}{requirement.specifier}"
        elif _name(requirement.name) not in _OWN:
            waiting += found.requires or []


def _unpack(requirement: str, wheels: str, folder: Path) -> bool:
    where = ["--no-index", "--find-links", wheels, "--no-deps", "--target", str(folder), "--upgrade"]
    command = [*_pip("install"), "--quiet", "--no-compile", "--no-cache-dir", *where, requirement]
    return subprocess.run(command, stdout=sys.stderr).returncode == 0


def _pip(command: str) -> list[str]:
    return [sys.executable, "-m", "pip", command, "--disable-pip-version-check"]


def _requirement_class() -> Any:
    try:
        from packaging.requirements import Requirement
    except ImportError:  # pip has a copy of its own
        from pip._vendor.packaging.requirements import Requirement
    return Requirement


def _name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else requirement
