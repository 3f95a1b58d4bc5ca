"""PluginSite: a folder of small real distributions, to test how plugins are found and loaded."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

import core_engine

__all__ = ["PluginSite", "backend_source"]

_STDLIB = tuple(
    dict.fromkeys(
        path
        for key in ("stdlib", "platstdlib")
        for path in (sysconfig.get_path(key), os.path.join(sysconfig.get_path(key), "lib-dynload"))
    )
)

#: What a fresh process imports before its path is narrowed to the site and the standard library.
_LIGHT_PACKAGES = "core_engine, core_engine.plugin, importlib_metadata, msgspec, numpy, pluggy"

_BACKEND_SOURCE = """
from core_engine.plugin import (
    BackendInfo, Capabilities, Detection, DetectionState, DeviceInfo, WorkerPlan, hookimpl, load_class,
)

CORE_ENGINE_API = {api!r}

@hookimpl
def backend_info():
    return BackendInfo(name={name!r}, priority={priority}, description="a backend for tests")

@hookimpl
def detect(probe):
    return Detection(
        state=DetectionState({state!r}), reason={reason!r}, devices=(DeviceInfo(index=0, name="device 0"),)
    )

@hookimpl
def capabilities():
    return Capabilities()

@hookimpl
def plan_workers(devices):
    return (WorkerPlan(rank=0, device_indices=tuple(device.index for device in devices)),)

@hookimpl
def create_worker(context):
    return load_class("no_such_package.worker:Worker")(context)

@hookimpl
def create_model_runner(context):
    return load_class("no_such_package.runner:Runner")(context)
"""


def backend_source(
    name: str,
    *,
    priority: int = 100,
    state: str = "available",
    reason: str = "found by the test",
    api: str = "0.1",
    extra: str = "",
) -> str:
    """Return a complete light module; ``extra`` comes last, so its definitions replace the others."""
    text = _BACKEND_SOURCE.format(name=name, priority=priority, state=state, reason=reason, api=api)
    return text + textwrap.dedent(extra)


class PluginSite:
    """A site folder of distributions written by a test, and the ways to run with them alone.

    A module of the site is imported under its own name, so names must not clash with installed ones.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add_distribution(
        self,
        name: str,
        entry_points: Mapping[str, Mapping[str, str]],
        modules: Mapping[str, str] | None = None,
        version: str = "1.0",
    ) -> Path:
        """Write modules (name → source) and the metadata beside them; return the ``dist-info``."""
        for module, source in (modules or {}).items():
            (self.folder / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        sections = [
            "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())])
            for group, entries in entry_points.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(sections) + "\n")
        return info

    def add_backend(self, name: str, source: str | None = None, version: str = "1.0") -> Path:
        """Write the distribution ``core-engine-NAME`` with the light module ``NAME_plugin``."""
        return self.add_distribution(
            f"core-engine-{name}",
            {"core_engine.backends": {name: f"{name}_plugin"}},
            {f"{name}_plugin": backend_source(name) if source is None else source},
            version,
        )

    def uninstall(self, name: str) -> None:
        """Remove a backend that `add_backend` wrote."""
        (self.folder / f"{name}_plugin.py").unlink()
        for info in self.folder.glob(f"core_engine_{name}-*.dist-info"):
            rmtree(info)

    @contextmanager
    def visible(self, *others: PluginSite) -> Iterator[None]:
        """Narrow this process's path to the site (and ``others`` after it) and the standard library.

        Modules imported meanwhile from the sites are forgotten afterwards.
        """
        folders = [str(site.folder) for site in (self, *others)]
        path_before = sys.path[:]
        sys.path[:] = [*folders, *_STDLIB]
        _forget_caches()
        try:
            yield
        finally:
            sys.path[:] = path_before
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", "") or "").startswith(tuple(folders)):
                    del sys.modules[name]
            _forget_caches()

    def run(
        self, code: str, *, environment: Mapping[str, str] | None = None, whole_environment: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run ``code`` in a fresh interpreter that sees the site's distributions and no other.

        With ``whole_environment`` the site is added to the path instead, so that torch and the rest
        can be imported. Variables of core-engine's own are taken from ``environment`` alone.
        """
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("CORE_ENGINE_")}
        package_root = str(Path(core_engine.__file__).parents[1])
        variables = {**inherited, "PYTHONPATH": package_root, **(environment or {})}
        if whole_environment:
            variables["PYTHONPATH"] = os.pathsep.join([str(self.folder), package_root])
            prelude = ""
        else:
            path = [str(self.folder), *_STDLIB]
            prelude = f"import sys, {_LIGHT_PACKAGES}\nsys.path[:] = {path!r}\n"
        return subprocess.run(
            [sys.executable, "-c", prelude + textwrap.dedent(code)],
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def run_command(
        self, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``core-engine`` with ``arguments`` like `run`."""
        code = f"""
        import sys
        from core_engine.cli.main import main
        sys.exit(main({list(arguments)!r}))
        """
        return self.run(code, environment=environment)


def _forget_caches() -> None:
    importlib.invalidate_caches()
    for finder in sys.meta_path:
        invalidate = getattr(finder, "invalidate_caches", None)
        if invalidate is not None:
            invalidate()
