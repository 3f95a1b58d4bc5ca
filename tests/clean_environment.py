"""Environments that hold built wheels and nothing of the checkout, and commands that run in one."""

from __future__ import annotations

import email.parser
import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any

__all__ = [
    "REPOSITORY",
    "build_plugin",
    "build_wheel",
    "check_contents",
    "install_wheels",
    "link_installed",
    "listed_backends",
    "loaded_by_listing",
    "make_environment",
    "read_metadata",
    "run_core_engine",
    "run_python",
]

REPOSITORY = Path(__file__).resolve().parents[1]

#: What the processes of a clean environment inherit of this one's variables.
_KEPT_VARIABLES = ("PATH", "LANG", "HOME", "TMPDIR", "OMP_NUM_THREADS")


def build_wheel(project: Path, folder: Path) -> Path:
    """Build the wheel of ``project`` into ``folder`` with the build backend that is installed here."""
    before = set(folder.glob("*.whl"))
    _run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), "."], project)
    (path,) = set(folder.glob("*.whl")) - before
    return path


def build_plugin(project: Path, folder: Path) -> Path:
    """Build the wheels of core-engine and of ``project`` into ``folder``; return the second."""
    build_wheel(REPOSITORY, folder)
    return build_wheel(project, folder)


def check_contents(wheel: Path, package: Path) -> None:
    """Fail unless ``wheel`` holds the modules of ``package``, its py.typed, the licence and nothing else."""
    expected = {path.relative_to(package.parent).as_posix() for path in package.rglob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (licence,) = [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
        assert archive.read(licence) == (REPOSITORY / "LICENSE").read_bytes()
    assert {name for name in names if ".dist-info/" not in name} == {*expected, f"{package.name}/py.typed"}


def read_metadata(wheel: Path) -> Message:
    """Return the fields of the wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.parser.Parser().parsestr(archive.read(name).decode())


def make_environment(folder: Path) -> Path:
    """Make an environment without pip; return its site-packages."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    return site


def link_installed(site: Path, *, without: tuple[str, ...] = ()) -> None:
    """Show ``site`` all that is installed here but this checkout's distributions and those of ``without``.

    An environment that shares another's packages (scripts/shared_environment.py) shows those too.
    """
    own = Path(sysconfig.get_path("purelib"))
    shared = [Path(path) for path in sys.path if Path(path).name == own.name and Path(path) != own]
    hidden = ("core_engine", "_editable", "zz_shared", *without)
    for entry in (entry for folder in (own, *shared) for entry in folder.iterdir()):
        if not entry.name.startswith(hidden) and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)


def install_wheels(environment: Path, *requirements: str, wheels: Path | None = None) -> None:
    """Let pip install ``requirements`` without a package index.

    With ``wheels``, a folder, they are looked up there and their own requirements must be met; without
    it they are paths, and their requirements are not looked at.
    """
    python = str(environment / "bin" / "python")
    source = ["--no-deps"] if wheels is None else ["--find-links", str(wheels)]
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", *source]
    _run([*command, *requirements], environment)


def run_python(environment: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the environment's Python, away from the checkout and from the variables of this process."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return subprocess.run(
        [str(environment / "bin" / "python"), *arguments],
        cwd=environment,
        env={**kept, "HF_HUB_OFFLINE": "1", **variables},
        capture_output=True,
        text=True,
    )


def run_core_engine(environment: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command; see `run_python`."""
    return run_python(environment, str(environment / "bin" / "core-engine"), *arguments, **variables)


def listed_backends(environment: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    """Return what ``core-engine backends --json`` says, by name."""
    result = run_core_engine(environment, "backends", "--json", *arguments, **variables)
    assert result.returncode == 0, result.stderr
    return {row["name"]: row for row in json.loads(result.stdout)}


def loaded_by_listing(environment: Path, *modules: str, **variables: str) -> set[str]:
    """Return which of ``modules`` the command ``backends`` loads."""
    program = (
        "import json, sys\n"
        "from core_engine.cli.main import main\n"
        "main(['backends'])\n"
        f"print(json.dumps([name for name in {modules!r} if name in sys.modules]))"
    )
    result = run_python(environment, "-c", program, **variables)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout.splitlines()[-1]))


def _run(command: list[str], folder: Path) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
