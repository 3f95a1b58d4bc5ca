"""HookManager: one role's hooks in a worker process, with an owner that acts and extensions that wrap."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from core_engine.errors import ContractError, did_you_mean
from core_engine.hookspecs.model_runner import ModelRunnerApi
from core_engine.hookspecs.worker import WorkerApi
from core_engine.plugin._markers import RUNNER_PROJECT, WORKER_PROJECT

if TYPE_CHECKING:
    from pluggy import HookimplOpts, HookspecOpts

__all__ = ["HookManager", "hook_names", "runner_hooks", "worker_hooks"]

Api = type[WorkerApi] | type[ModelRunnerApi]


def hook_names(api: Api) -> tuple[str, ...]:
    """Return the hooks of an API, sorted: its own public methods, optional ones (not abstract) included."""
    methods = (name for name, value in vars(api).items() if inspect.isfunction(value))
    return tuple(sorted(name for name in methods if not name.startswith("_")))


def worker_hooks(worker: WorkerApi, extensions: Mapping[str, object]) -> HookManager:
    """Return the manager of a worker; ``extensions`` (name → object) wrap it, the first one outermost."""
    return HookManager(WORKER_PROJECT, WorkerApi, worker, extensions)


def runner_hooks(runner: ModelRunnerApi, extensions: Mapping[str, object]) -> HookManager:
    """Return the manager of a model runner; see `worker_hooks`."""
    return HookManager(RUNNER_PROJECT, ModelRunnerApi, runner, extensions)


class HookManager(pluggy.PluginManager):
    """A plugin manager whose specification is an ABC and whose owner needs no decorators.

    Every public method of ``api`` is a ``firstresult`` hook. The owner's methods are claimed by
    name (as pytest does) and must have the API's signatures exactly; other objects may only wrap.
    Raises `ContractError` for whatever does not fit.
    """

    def __init__(
        self,
        project: str,
        api: Api,
        owner: WorkerApi | ModelRunnerApi,
        extensions: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(project)
        self._api = api
        self._owner = owner
        self._hook_names = hook_names(api)
        self.add_hookspecs(api)
        self.register(owner, name=_class_path(owner))
        # pluggy calls the wrapper that was registered last first.
        for name, extension in reversed(list((extensions or {}).items())):
            self._wrap(name, extension)

    def call(self, hook: str, **arguments: Any) -> Any:
        """Call ``hook``. Raises `ContractError` when None comes back, which pluggy takes for no answer."""
        result = getattr(self.hook, hook)(**arguments)
        if result is None:
            wrappers = [i.plugin_name for i in getattr(self.hook, hook).get_hookimpls() if i.wrapper]
            blame = f", or an extension that wraps it ({', '.join(wrappers)})," if wrappers else ""
            raise ContractError(
                f"hook {hook!r} returned None: {_class_path(self._owner)}{blame} must return what "
                f"{self._api.__name__}.{hook} says"
            )
        return result

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> HookspecOpts | None:
        """Take every public method of the API for a ``firstresult`` hook."""
        if name not in self._hook_names:
            return None
        return {"firstresult": True, "historic": False, "warn_on_impl": None, "warn_on_impl_args": None}

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> HookimplOpts | None:
        """Claim the owner's methods by name; take only marked wrappers from anyone else."""
        if plugin is not self._owner:
            return self._parse_wrapper(plugin, name)
        if name not in self._hook_names:
            return None
        self._check_signature(name)
        return {
            "wrapper": False,
            "hookwrapper": False,
            "optionalhook": False,
            "tryfirst": False,
            "trylast": False,
            "specname": None,
        }

    def _wrap(self, name: str, extension: object) -> None:
        try:
            self.register(extension, name=name)
        except (pluggy.PluginValidationError, ValueError) as refusal:
            raise ContractError(f"extension {name!r} breaks the plugin API: {refusal}") from refusal

    def _parse_wrapper(self, extension: object, name: str) -> HookimplOpts | None:
        options = super().parse_hookimpl_opts(extension, name)
        subject = f"extension method {_class_path(extension)}.{name}"
        if options is None:
            if name in self._hook_names and not _is_marked(extension, name):
                raise ContractError(
                    f"{subject} has the name of a hook but no marker, so it would never be called: mark "
                    "it with worker_hookimpl(wrapper=True) or runner_hookimpl(wrapper=True), or rename it"
                )
            return None
        hook = options["specname"] or name
        if hook not in self._hook_names:
            raise ContractError(
                f"{subject} names hook {hook!r}, which {self._api.__name__} does not have."
                f"{did_you_mean(hook, self._hook_names)} Its hooks are {', '.join(self._hook_names)}"
            )
        if not options["wrapper"]:
            raise ContractError(
                f"{subject} is not a wrapper: an extension may only wrap a hook. Mark it with "
                "wrapper=True and write it as a generator with one yield"
            )
        return options

    def _check_signature(self, name: str) -> None:
        method = getattr(self._owner, name)
        subject = f"{_class_path(self._owner)}.{name}"
        if not (inspect.ismethod(method) or inspect.isfunction(method)):
            raise ContractError(f"{subject} is a {type(method).__name__}: a hook must be a plain method")
        wanted = inspect.signature(getattr(self._api, name))
        wanted = wanted.replace(parameters=list(wanted.parameters.values())[1:])
        found = inspect.signature(method)
        if _shape(found) != _shape(wanted):
            raise ContractError(
                f"{subject}{_without_annotations(found)} does not match {self._api.__name__}.{name}"
                f"{_without_annotations(wanted)}: parameters must have the same names, kinds and defaults"
            )


def _shape(signature: inspect.Signature) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in signature.parameters.values()]


def _without_annotations(signature: inspect.Signature) -> inspect.Signature:
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return inspect.Signature(plain)


def _is_marked(extension: object, name: str) -> bool:
    """Say whether a method carries either role's marker (or is no method at all)."""
    method = inspect.getattr_static(extension, name)
    if not callable(method) and not isinstance(method, (staticmethod, classmethod)):
        return True
    return any(hasattr(method, f"{project}_impl") for project in (WORKER_PROJECT, RUNNER_PROJECT))


def _class_path(owner: object) -> str:
    return f"{type(owner).__module__}.{type(owner).__qualname__}"
