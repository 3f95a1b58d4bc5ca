"""Exceptions on their way from a worker process to its parent: by name, never as objects."""

from __future__ import annotations

import traceback

from core_engine import errors
from core_engine.errors import CoreEngineError, EngineError, InvalidRequest
from core_engine.executor.codec import Reply

__all__ = ["describe_error", "rebuild_error"]


def describe_error(call_id: int, error: BaseException) -> Reply:
    """Return the reply that carries ``error``.

    A subclass that a backend defined travels as the nearest class of `core_engine.errors`; any
    other exception as `EngineError`, its own type named in the message.
    """
    message = str(error)
    kind = next((c.__name__ for c in type(error).__mro__ if c.__module__ == errors.__name__), None)
    if kind is None:
        kind, message = EngineError.__name__, f"{type(error).__name__}: {message}"
    return Reply(
        call_id=call_id,
        error=kind,
        message=message,
        param=error.param if isinstance(error, InvalidRequest) else None,
        traceback="".join(traceback.format_exception(error)),
    )


def rebuild_error(reply: Reply, place: str = "") -> CoreEngineError:
    """Return the exception that a reply describes, with the worker's traceback as a note.

    ``place`` says which worker it was, where there are several.
    """
    kind = getattr(errors, reply.error, None)
    if not (isinstance(kind, type) and issubclass(kind, CoreEngineError)):
        kind = EngineError
    arguments = (reply.message, reply.param) if issubclass(kind, InvalidRequest) else (reply.message,)
    error = kind(*arguments)
    where = f" ({place})" if place else ""
    error.add_note(f"in the worker process{where}:\n{reply.traceback}")
    return error
