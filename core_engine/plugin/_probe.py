"""What a backend may look at during detection: files, drivers and variables, never a device context."""

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import importlib.util
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import importlib_metadata


class Probe:
    """Reads the machine for `BackendSpec.detect`; every answer is cheap and leaves nothing behind.

    ``environment`` defaults to a snapshot of the process's variables and ``root`` to ``/``; tests of
    a backend pass their own.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, root: str | Path = "/") -> None:
        self.environment: Mapping[str, str] = dict(os.environ if environment is None else environment)
        self.root = Path(root)

    def exists(self, path: str) -> bool:
        """Say whether a file, folder or device node exists."""
        return self._under_root(path).exists()

    def glob(self, pattern: str) -> tuple[str, ...]:
        """Return the paths that match ``pattern`` (as `glob.glob`), sorted."""
        return tuple(sorted(glob.glob(str(self._under_root(pattern)))))

    def read_text(self, path: str) -> str | None:
        """Return the text of a small file without surrounding blanks, or None when it cannot be read."""
        return _read(self._under_root(path))

    def library(self, name: str) -> str | None:
        """Return the file name of a shared library (``"cuda"`` for libcuda), or None; nothing is loaded."""
        return ctypes.util.find_library(name)

    def load_library(self, file_name: str) -> Any | None:
        """Load a shared library (``"libnvidia-ml.so.1"``) through ctypes; None where it is not found.

        For a driver's library of questions, which opens no device context. It stays loaded.
        """
        try:
            return ctypes.CDLL(file_name)
        except OSError:
            return None

    def package_text(self, package: str, file_name: str) -> str | None:
        """Return the text of a file of an installed top-level package, or None; nothing is imported."""
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            return None
        return _read(Path(spec.origin).parent / file_name)

    def distribution_version(self, distribution: str) -> str | None:
        """Return the installed version of a Python distribution, or None; nothing is imported."""
        try:
            return importlib_metadata.version(distribution)
        except importlib_metadata.PackageNotFoundError:
            return None

    @cached_property
    def pci_devices(self) -> tuple[tuple[str, str], ...]:
        """The (vendor, device) ids of all PCI devices, e.g. ("0x10de", "0x2330"), sorted, with repetitions.

        A vendor's id alone says little: the network card of a virtual machine may be the maker's too.
        """
        folders = (Path(path) for path in self.glob("/sys/bus/pci/devices/*"))
        pairs = ((_read(folder / "vendor"), _read(folder / "device")) for folder in folders)
        return tuple(sorted((vendor, device) for vendor, device in pairs if vendor and device))

    def _under_root(self, path: str) -> Path:
        return self.root / path.lstrip("/") if os.path.isabs(path) else Path(path)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
