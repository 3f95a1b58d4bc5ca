"""Make an environment with the lowest transformers that pyproject.toml admits.

Run by the Python of the main environment, whose packages (torch above all) the new one shares; only
transformers and what that release needs otherwise are installed anew::

    .venv/bin/python scripts/lowest_environment.py .venv-lowest
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


def lowest_transformers() -> str:
    """Return the lower bound of transformers in pyproject.toml, e.g. "5.20"."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = [line for line in project["dependencies"] if line.startswith("transformers>=")]
    return str(requirement).removeprefix("transformers>=").partition(",")[0]


def main() -> None:
    """Create the environment named on the command line, replacing an old one."""
    target = Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    venv.create(target, with_pip=False)
    python = target / "bin" / "python"
    purelib = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    # addsitedir, not a bare path: the main environment's own .pth files (editable installs) count too.
    shared = sysconfig.get_path("purelib")
    Path(purelib, "zz_shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n", encoding="utf-8")
    version = lowest_transformers()
    print(f"Making the environment in {target} with transformers {version}", file=sys.stderr, flush=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"transformers=={version}"], check=True)
    found = subprocess.run(
        [python, "-c", "import transformers; print(transformers.__version__)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    if not found.startswith(version):
        raise SystemExit(f"{python} imports transformers {found}, not {version}")


if __name__ == "__main__":
    main()
