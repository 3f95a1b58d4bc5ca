"""Where compiled kernels are kept between runs, and what is said while they are compiled."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba

from core_engine.backends.cpu import kernels

__all__ = ["compile_cached", "kernel_cache"]

logger = logging.getLogger(__name__)


@contextmanager
def kernel_cache() -> Iterator[Path | None]:
    """Let functions that numba decorates with ``cache=True`` inside keep their machine code.

    The folder is ``core-engine/cpu-kernels/VERSION`` under ``NUMBA_CACHE_DIR`` or the user's cache
    folder. VERSION changes with the kernels' sources, numba, Python and the processor: numba itself
    looks only at the file of the outermost function. Yields None where nothing can be written there.
    """
    try:
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        usable = False
    before = numba.config.CACHE_DIR
    if usable:
        numba.config.CACHE_DIR = str(folder)
    try:
        yield folder if usable else None
    finally:
        numba.config.CACHE_DIR = before


def compile_cached(function: Callable[..., None], signature: str) -> Any:
    """Compile ``function`` to a C callback, or load what an earlier process compiled.

    Says so in one log line when it has to compile, because that takes seconds.
    """
    with kernel_cache() as folder:
        if folder is None or not any(folder.rglob(f"*.{function.__name__}-*.nbi")):
            logger.info("compiling CPU kernels (%s, once)", function.__name__)
        return numba.cfunc(signature, cache=folder is not None)(function)


def _folder() -> Path:
    digest = hashlib.sha256()
    for source in sorted(Path(kernels.__path__[0]).glob("*.py")):
        digest.update(source.read_bytes())
    digest.update(f"{numba.__version__} {sys.version} {platform.machine()}".encode())
    digest.update(llvmlite.binding.get_host_cpu_name().encode())
    chosen = numba.config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME")
    root = Path(chosen) if chosen else Path.home() / ".cache"
    return root / "core-engine" / "cpu-kernels" / digest.hexdigest()[:16]
