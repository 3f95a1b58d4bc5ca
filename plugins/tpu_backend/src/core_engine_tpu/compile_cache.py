"""Where compiled graphs are kept between starts: one folder for each thing that they depend on."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import importlib_metadata

from core_engine.plugin import ModelConfig

__all__ = ["CompileCache", "choose_cache_folder", "versioned_folder"]

logger = logging.getLogger("core_engine.backends.tpu")

#: A graph compiled by one of these is not to be run by another.
_COMPILERS = ("torch", "torch_xla", "libtpu", "jax")
#: Variables that change what the compiler makes.
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


class CompileCache:
    """One folder of compiled graphs, and what this process did to it.

    torch_xla writes a graph that it had to compile, over a file that it could not read too; its own
    counters of the cache stop at one, so the files are looked at.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._before = _times(folder)

    def log_use(self) -> None:
        """Tell what was written since the folder was opened; files that were damaged are a warning."""
        now = _times(self.folder)
        num_new = len(now.keys() - self._before.keys())
        num_damaged = sum(now.get(name, time) != time for name, time in self._before.items())
        logger.info(
            "compile cache %s: %d graphs before, %d compiled now",
            self.folder,
            len(self._before),
            num_new + num_damaged,
        )
        if num_damaged:
            logger.warning(
                "compile cache %s: %d files could not be read; their graphs were compiled and written anew",
                self.folder,
                num_damaged,
            )
        self._before = now


def choose_cache_folder(
    option: str,
    model: ModelConfig,
    *,
    is_tpu: bool,
    num_devices: int = 1,
    environment: Mapping[str, str],
) -> Path | None:
    """Return the folder for the graphs of ``model`` on so many devices, which exists then; None for no cache.

    ``option`` is "auto", "off" or a folder. Auto is ``core-engine/xla`` in the user's cache folder on a
    TPU, and off on the host, whose compiler writes graphs but cannot read them. A folder that cannot be
    made is a warning, and no cache.
    """
    named = option.strip().lower()
    if named in ("", "off") or (named == "auto" and not is_tpu):
        return None
    if named == "auto":
        root = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "core-engine" / "xla"
    else:
        root = Path(option).expanduser()
    # A graph in which nothing is divided looks the same on any number of devices.
    versions = {**{name: _version(name) for name in _COMPILERS}, "devices": str(num_devices)}
    folder = versioned_folder(root, versions, environment, model)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logger.warning("no compile cache: %s cannot be made (%s)", folder, error.strerror)
        return None
    if not os.access(folder, os.W_OK):
        logger.warning("no compile cache: %s cannot be written", folder)
        return None
    return folder


def versioned_folder(
    root: Path, versions: Mapping[str, str], environment: Mapping[str, str], model: ModelConfig
) -> Path:
    """Return the folder under ``root`` that belongs to these compilers, these flags and this model."""
    flags = [f"{name}={environment[name]}" for name in _FLAGS if environment.get(name)]
    identity = [*(f"{name} {version}" for name, version in versions.items()), *flags, model.directory]
    digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
    return root / f"{model.architecture}-{digest}"


def _version(distribution: str) -> str:
    try:
        return importlib_metadata.version(distribution)
    except importlib_metadata.PackageNotFoundError:
        return "none"


def _times(folder: Path) -> dict[str, int]:
    """Return when each file was written, by name, in nanoseconds."""
    return {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(folder) if entry.is_file()}
