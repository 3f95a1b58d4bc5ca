"""Backend options: from ``name=value`` texts to checked values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from core_engine._text import parse_bool
from core_engine.errors import ConfigError, ContractError, did_you_mean
from core_engine.plugin._backend_types import BackendOption

__all__ = ["OptionValue", "check_schema", "parse_options"]

OptionValue = str | int | float | bool | None

_PARSERS: Mapping[str, Callable[[str], str | int | float | bool]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": parse_bool,
}
_TYPES: Mapping[str, type] = {"str": str, "int": int, "float": float, "bool": bool}


def check_schema(schema: tuple[BackendOption, ...], subject: str) -> None:
    """Raise `ContractError`, naming ``subject``, for a schema that cannot be used."""
    names: set[str] = set()
    for option in schema:
        if option.name in names:
            raise ContractError(f"{subject} lists the option {option.name!r} twice")
        names.add(option.name)
        if option.type not in _PARSERS:
            raise ContractError(
                f"{subject} gives option {option.name!r} the type {option.type!r}; "
                f"possible are {', '.join(_PARSERS)}"
            )
        if option.default is not None:
            try:
                msgspec.convert(option.default, _TYPES[option.type])
            except msgspec.ValidationError as mismatch:
                raise ContractError(
                    f"{subject} gives option {option.name!r} of type {option.type} the default "
                    f"{option.default!r}: {mismatch}"
                ) from None


def parse_options(
    texts: Mapping[str, str], schema: tuple[BackendOption, ...], backend: str
) -> dict[str, OptionValue]:
    """Return every option of ``schema`` with its value from ``texts`` or its default.

    Raises `ConfigError` for a name that the schema does not list, a text that is not of the option's
    type, and a value outside its choices.
    """
    known = {option.name: option for option in schema}
    for name in texts:
        if name not in known:
            possible = f"its options are {', '.join(sorted(known))}" if known else "it takes none"
            raise ConfigError(
                f"backend {backend!r} has no option {name!r}; {possible}.{did_you_mean(name, known)}"
            )
    return {
        name: _parse_value(option, texts[name], backend) if name in texts else option.default
        for name, option in known.items()
    }


def _parse_value(option: BackendOption, text: str, backend: str) -> OptionValue:
    if option.choices and text not in option.choices:
        raise ConfigError(
            f"option {option.name!r} of backend {backend!r} cannot be {text!r}; possible are "
            f"{', '.join(option.choices)}.{did_you_mean(text, option.choices)}"
        )
    try:
        return _PARSERS[option.type](text)
    except ValueError:
        raise ConfigError(
            f"option {option.name!r} of backend {backend!r} takes a value of type {option.type}, "
            f"got {text!r} ({option.help})"
        ) from None
