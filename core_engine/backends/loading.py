"""Load one backend's light module and check it against the plugin API, touching no other plugin."""

from __future__ import annotations

import inspect
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import cast

import pluggy

from core_engine._text import one_line
from core_engine._torch_autoload import torch_autoload_off
from core_engine.backends.backend import Backend
from core_engine.backends.installed import InstalledPlugin
from core_engine.backends.plugin_code import describe_failure, describe_value, prints_to_stderr
from core_engine.errors import ApiVersionError, BackendLoadError, ContractError, PluginError, did_you_mean
from core_engine.hookspecs.backend import REQUIRED_HOOKS, BackendSpec
from core_engine.plugin._markers import BACKEND_PROJECT
from core_engine.plugin._version import check_api_version

__all__ = ["HEAVY_MODULES", "LoadResult", "as_plugin_error", "load_backend", "try_load"]

#: Packages that a light module must not import; what it did import of them is reported.
HEAVY_MODULES = (
    "cupy",
    "jax",
    "numba",
    "onnxruntime",
    "openvino",
    "tensorflow",
    "torch",
    "torch_xla",
    "transformers",
    "triton",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadResult:
    """What came of loading one plugin: a backend, or the error that says why there is none."""

    backend: Backend | None = None
    error: PluginError | None = None
    #: ``CORE_ENGINE_API`` of the module as text; None when the import failed or it states none.
    api: str | None = None
    import_seconds: float
    #: Those of `HEAVY_MODULES` that this import brought into the process.
    heavy_modules: tuple[str, ...]


def load_backend(entry: InstalledPlugin) -> Backend:
    """Import the module that ``entry`` names and return its façade.

    Raises `BackendLoadError` when the import fails, `ApiVersionError` when its API version is
    refused, `ContractError` when its hooks do not fit.
    """
    result = try_load(entry)
    if result.backend is None:
        raise result.error or BackendLoadError(f"{entry} did not load")
    return result.backend


def try_load(entry: InstalledPlugin) -> LoadResult:
    """Load ``entry`` and measure its import; only `KeyboardInterrupt` leaves this function."""
    heavy_before = {name for name in HEAVY_MODULES if name in sys.modules}
    start_s = time.perf_counter()
    backend: Backend | None = None
    error: PluginError | None = None
    api: str | None = None
    module: ModuleType | None = None
    try:
        module = _import_light_module(entry)
    except PluginError as failure:
        error = failure
    import_seconds = time.perf_counter() - start_s
    if module is not None:
        try:
            with prints_to_stderr():
                stated = getattr(module, "CORE_ENGINE_API", None)
                api = None if stated is None else str(stated)
                backend = _register(entry, module, stated)
        except KeyboardInterrupt:
            raise
        except BaseException as failure:
            error = as_plugin_error(entry, failure)
    return LoadResult(
        backend=backend,
        error=error,
        api=api,
        import_seconds=import_seconds,
        heavy_modules=tuple(n for n in HEAVY_MODULES if n in sys.modules and n not in heavy_before),
    )


def as_plugin_error(entry: InstalledPlugin, failure: BaseException) -> PluginError:
    """Return ``failure`` as one of the errors that loading and detection raise, naming the plugin.

    A plugin may raise anything, errors and subclasses of core's own included.
    """
    own = type(failure) in (ApiVersionError, BackendLoadError, ContractError)
    if own and entry.subject in str(failure):
        return cast(PluginError, failure)
    error = BackendLoadError(f"{entry.subject} failed: {describe_failure(failure)}")
    error.__cause__ = failure
    return error


def _import_light_module(entry: InstalledPlugin) -> ModuleType:
    if ":" in entry.value:
        raise ContractError(
            f"{entry.subject} does not name a module: the value of its entry point must be "
            f"'package.module', without ':{entry.value.partition(':')[2]}'"
        )
    try:
        with torch_autoload_off(), prints_to_stderr():
            module = import_module(entry.value)
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        raise BackendLoadError(f"{entry.subject} failed to import: {describe_failure(failure)}") from failure
    if not isinstance(module, ModuleType):  # it put something else in its place
        raise ContractError(f"{entry.subject} is {describe_value(module)}; it must be a module")
    return module


def _register(entry: InstalledPlugin, module: ModuleType, stated_api: object) -> Backend:
    """Register ``module`` in a manager of its own, after its API version and before any call."""
    try:
        check_api_version(stated_api)
    except ApiVersionError as refusal:
        raise ApiVersionError(f"{entry.subject} is refused: {refusal}") from None
    manager = pluggy.PluginManager(BACKEND_PROJECT)
    manager.add_hookspecs(BackendSpec)
    known_hooks = {name for name in vars(BackendSpec) if not name.startswith("_")}
    for name in _marked_names(manager, module):
        if name not in known_hooks:
            raise ContractError(
                f"{entry.subject} marks {name!r}, which is no hook of BackendSpec."
                f"{did_you_mean(name, known_hooks)} The hooks are {', '.join(sorted(known_hooks))}"
            )
    try:
        manager.register(module, name=entry.name)
    except pluggy.PluginValidationError as failure:
        raise ContractError(f"{entry.subject} breaks the plugin API: {one_line(failure)}") from failure
    missing = set(REQUIRED_HOOKS)
    for name in sorted(known_hooks):
        for implementation in getattr(manager.hook, name).get_hookimpls():
            _check_arguments(entry, name, implementation)
            if not (implementation.wrapper or implementation.hookwrapper):
                missing.discard(name)
    if missing:
        raise ContractError(
            f"{entry.subject} lacks the required hook{'s' if len(missing) > 1 else ''} "
            f"{', '.join(sorted(missing))}: define each in {entry.value} and mark it with "
            "core_engine.plugin.hookimpl"
        )
    return Backend(entry, manager, str(stated_api))


def _marked_names(manager: pluggy.PluginManager, module: ModuleType) -> list[str]:
    """Names of the module's marked functions; a mark with ``optionalhook`` may name a newer hook."""
    marked = []
    for attribute in dir(module):
        options = manager.parse_hookimpl_opts(module, attribute)
        if options is not None and not options.get("optionalhook"):
            marked.append(options.get("specname") or attribute)
    return marked


def _check_arguments(entry: InstalledPlugin, hook: str, implementation: pluggy.HookImpl) -> None:
    """Refuse parameters that pluggy would silently leave unset."""
    parameter_kinds = inspect.Parameter
    for parameter in inspect.signature(implementation.function).parameters.values():
        if parameter.kind is not parameter_kinds.POSITIONAL_OR_KEYWORD:
            problem = "is not an ordinary parameter"
        elif parameter.default is not parameter_kinds.empty:
            problem = "has a default value"
        else:
            continue
        raise ContractError(
            f"{entry.subject} breaks the plugin API: argument {parameter.name!r} of hook {hook!r} "
            f"{problem}, so it would never be passed; write it as a plain {parameter.name!r}"
        )
