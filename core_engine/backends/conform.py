"""conform: a value of the plugin API that a plugin made, checked field by field."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from core_engine.backends.plugin_code import describe_value

__all__ = ["FieldMismatch", "conform"]

T = TypeVar("T")


class FieldMismatch(ValueError):
    """A field does not have its type; the text names the field, the type and the value."""


def conform(value: T, kind: type[T]) -> T:
    """Return the dataclass ``value`` with fields of exactly the types that ``kind`` states.

    Mappings become plain dicts and subclasses become ``kind``, so that the result can be written as
    JSON and msgpack. Types are strict: no number for a text, no bool for a number, no integer beyond
    64 bits, no text that is not Unicode.

    Raises `FieldMismatch`.
    """
    return cast(T, _dataclass(value, kind, kind.__name__))


def _dataclass(value: object, kind: type[Any], path: str) -> object:
    if not isinstance(value, kind):
        raise _mismatch(path, kind, value)
    fields = {}
    for name, hint in get_type_hints(kind).items():
        try:
            field = getattr(value, name)
        except AttributeError:
            raise FieldMismatch(f"{path}.{name} that is set") from None
        fields[name] = _conform(field, hint, f"{path}.{name}")
    return kind(**fields)


def _conform(value: object, hint: Any, path: str) -> object:
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return _dataclass(value, cast("type[Any]", hint), path)
    if origin is tuple:
        if not isinstance(value, tuple):
            raise _mismatch(path, hint, value)
        item = get_args(hint)[0]
        return tuple(_conform(each, item, f"{path}[{number}]") for number, each in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise _mismatch(path, hint, value)
        key_hint, value_hint = get_args(hint)
        return {
            _conform(key, key_hint, f"a key of {path}"): _conform(each, value_hint, f"{path}[{key!r}]")
            for key, each in value.items()
        }
    if isinstance(hint, type) and issubclass(hint, Enum):
        if not isinstance(value, hint):
            raise _mismatch(path, hint, value)
        return value
    try:
        converted: object = msgspec.convert(value, hint, strict=True)
        msgspec.msgpack.encode(converted)
    except msgspec.ValidationError:
        raise _mismatch(path, hint, value) from None
    except OverflowError:
        raise FieldMismatch(f"{path} within 64 bits, got {describe_value(value)}") from None
    except UnicodeEncodeError:
        raise FieldMismatch(f"{path} as Unicode text, got {describe_value(value)}") from None
    return converted


def _mismatch(path: str, hint: Any, value: object) -> FieldMismatch:
    wanted = hint.__name__ if get_origin(hint) is None else str(hint).replace("collections.abc.", "")
    return FieldMismatch(f"{path} of type {wanted}, got {describe_value(value)}")
