"""What Triton needs besides itself to start a kernel: a C compiler and Python's headers. Light.

Triton compiles its kernels by itself, but the module that hands them to the driver is C, compiled at the
first launch of a machine (``triton/runtime/build.py``), for the Python at hand.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path

__all__ = ["c_compiler", "python_headers", "toolchain_refusal"]


def c_compiler(environment: Mapping[str, str]) -> str | None:
    """Return the compiler that Triton takes: $CC, else gcc or clang on the path; None without any."""
    chosen = environment.get("CC")
    if chosen is not None:
        return shutil.which(chosen, path=environment.get("PATH"))
    return next(
        filter(None, (shutil.which(name, path=environment.get("PATH")) for name in ("gcc", "clang"))), None
    )


def python_headers() -> str | None:
    """Return the folder of Python.h; None where it is not installed."""
    scheme = sysconfig.get_default_scheme()
    # Debian's own scheme names a folder that it never fills; Triton takes the other one too.
    folder = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]
    return folder if (Path(folder) / "Python.h").is_file() else None


def toolchain_refusal(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return what is missing for Triton's first launch and how to get it, or None."""
    if c_compiler(environment) is None:
        missing = f"no C compiler (CC={environment['CC']!r})" if "CC" in environment else "no C compiler"
        advice = "install gcc, or set CC"
    elif python_headers() is None:
        missing, advice = "no Python.h", "install the headers of this Python (python3-dev)"
    else:
        return None
    return (
        f"the Triton kernels cannot be started, because there is {missing} on this machine: {advice}; or do "
        "without these kernels: --backend-option attention=reference --backend-option sampler=reference"
    )
