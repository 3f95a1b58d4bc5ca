"""Import a class by its path, so that a light module can name heavy code without importing it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from core_engine.errors import BackendLoadError, did_you_mean


def load_class(path: str) -> Any:
    """Import ``"package.module:Name"`` and return the object.

    Raises `BackendLoadError` naming the path and the part that is missing or failed to import, whatever
    the module raised (`KeyboardInterrupt` excepted).
    """
    module_name, separator, name = path.partition(":")
    if not (module_name and separator and name):
        raise BackendLoadError(f"class path {path!r} is not of the form 'package.module:Name'")
    try:
        module = import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BackendLoadError(
            f"cannot import {module_name!r} of class path {path!r}: {type(error).__name__}: {error}"
        ) from error
    try:
        return getattr(module, name)
    except KeyboardInterrupt:
        raise
    except AttributeError:
        raise BackendLoadError(
            f"module {module_name!r} has no {name!r} (class path {path!r}).{did_you_mean(name, vars(module))}"
        ) from None
    except BaseException as error:  # of the module's own __getattr__
        raise BackendLoadError(
            f"cannot get {name!r} of class path {path!r}: {type(error).__name__}: {error}"
        ) from error
