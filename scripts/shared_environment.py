"""Make an environment that shares the packages of another, torch above all, and adds what is named.

Run by the Python of the main environment, whose packages the new one shares; what follows the folder is
installed into the new one by pip, where it takes the place of a shared package::

    .venv/bin/python scripts/shared_environment.py .venv-lowest lowest:transformers
    .venv/bin/python scripts/shared_environment.py plugins/cuda_backend/.venv ./plugins/cuda_backend[testing]

``lowest:NAME`` is the lowest release that pyproject.toml admits; a path is installed as editable.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def lowest_release(name: str) -> str:
    """Return the lower bound of a dependency in pyproject.toml, e.g. "5.20"."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = [line for line in project["dependencies"] if line.startswith(f"{name}>=")]
    return str(requirement).removeprefix(f"{name}>=").partition(",")[0]


def make_environment(target: Path) -> Path:
    """Create an environment that shares this one's packages, replacing an old one; return its Python."""
    shutil.rmtree(target, ignore_errors=True)
    venv.create(target, with_pip=False)
    python = target / "bin" / "python"
    purelib = _answer(python, "import sysconfig; print(sysconfig.get_path('purelib'))")
    # addsitedir, not a bare path: the main environment's own .pth files (editable installs) count too.
    shared = sysconfig.get_path("purelib")
    Path(purelib, "zz_shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n", encoding="utf-8")
    return python


def main() -> None:
    """Create the environment named on the command line, and install the rest of the line into it."""
    target, *wanted = sys.argv[1:]
    python = make_environment(Path(target))
    requirements, releases = [], {}
    for entry in wanted:
        if entry.startswith("lowest:"):
            name = entry.removeprefix("lowest:")
            releases[name] = lowest_release(name)
            requirements.append(f"{name}=={releases[name]}")
        else:
            requirements += ["--editable", entry]
    print(f"Making the environment in {target} with {', '.join(wanted)}", file=sys.stderr, flush=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *requirements], check=True, cwd=REPOSITORY)
    for name, release in releases.items():
        found = _answer(python, f"import {name}; print({name}.__version__)")
        if not found.startswith(release):
            raise SystemExit(f"{python} imports {name} {found}, not {release}")


def _answer(python: Path, program: str) -> str:
    run = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True)
    return run.stdout.strip()


if __name__ == "__main__":
    main()
