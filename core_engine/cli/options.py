"""Options of the shell: every flag has a variable of the same name, and the flag wins."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core_engine._text import parse_bool
from core_engine.errors import ConfigError, did_you_mean

__all__ = [
    "LineParser",
    "add_backend_choice",
    "add_backend_options",
    "add_option",
    "add_switch",
    "parse_pairs",
    "variable_of",
]

#: An `argparse.ArgumentParser` or one of its groups.
Container = argparse._ActionsContainer


class LineParser(argparse.ArgumentParser):
    """A parser whose errors are one clear line, raised as `ConfigError`; flags are never abbreviated."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> Any:
        """Raise `ConfigError` with the command in front and the way to its help."""
        raise ConfigError(f"{message} (see {self.prog} --help)")

    def refuse_unknown(self, arguments: Sequence[str]) -> None:
        """Raise `ConfigError` for what no option took, with the nearest flag."""
        if arguments:
            unknown = arguments[0].partition("=")[0]
            if unknown in self._option_string_actions:
                self.error(f"{unknown} stands before the command; write it after {self.prog!r}")
            near = did_you_mean(unknown, self._option_string_actions) if unknown.startswith("-") else ""
            self.error(f"unknown argument {unknown!r}.{near}")


def variable_of(flag: str) -> str:
    """Return the variable that stands for ``flag``: ``--max-model-len`` is ``CORE_ENGINE_MAX_MODEL_LEN``."""
    return "CORE_ENGINE_" + flag.lstrip("-").replace("-", "_").upper()


def add_option(
    container: Container,
    *flags: str,
    help: str,
    convert: Callable[[str], Any] = str,
    default: Any = None,
    choices: Sequence[str] = (),
    separator: str | None = None,
    metavar: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Add an option that takes a value; the last of ``flags`` names its variable.

    ``convert`` raises `ValueError` for a text that does not fit. With ``separator`` the option may be
    repeated and its value is a list; the variable then holds the items with ``separator`` between
    them. An empty variable counts as unset. A variable is read only where the flag is not given, and
    its errors name it.
    """
    variable = variable_of(flags[-1])
    text = (os.environ if environment is None else environment).get(variable, "")
    if default not in (None, []):
        help = f"{help} (default: {','.join(default) if separator else default})"
    container.add_argument(
        *flags,
        action=_Collect if separator else "store",
        type=_Converter(convert, tuple(choices), separator),
        default=_VariableText(variable, text) if text else default,
        help=f"{help} [{variable}]".replace("%", "%%"),
        metavar=metavar or ("{" + ",".join(choices) + "}" if choices else None),
    )


def add_switch(
    container: Container,
    flag: str,
    *,
    help: str,
    default: bool | None = False,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Add ``--flag`` and ``--no-flag``; the variable holds 1 or 0 (or true/false, yes/no, on/off)."""
    variable = variable_of(flag)
    text = (os.environ if environment is None else environment).get(variable, "")
    container.add_argument(
        flag,
        f"--no-{flag.removeprefix('--')}",
        action=_Switch,
        nargs=0,
        type=_Converter(parse_bool, (), None),
        default=_VariableText(variable, text) if text else default,
        help=f"{help} [{variable}]".replace("%", "%%"),
    )


def add_backend_choice(container: Container) -> None:
    """Add ``--backend``.

    ``args.backend`` is the flag alone: `core_engine.backends.selection` reads the variable, so that
    it can say which of the two decided.
    """
    container.add_argument(
        "--backend",
        metavar="NAME",
        help="backend by name, or 'auto' for the best that is available [CORE_ENGINE_BACKEND]",
    )


def add_backend_options(container: Container) -> None:
    """Add ``--backend`` and ``--backend-option``, whose value is a list of texts for `parse_pairs`."""
    add_backend_choice(container)
    add_option(
        container,
        "--backend-option",
        help="option of the backend's own; may be repeated",
        default=[],
        separator=",",
        metavar="NAME=VALUE",
    )


def parse_pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Return ``name=value`` texts as a mapping. Raises `ConfigError` for one without a name or ``=``."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            raise ConfigError(f"{flag} takes name=value, got {text!r}")
        pairs[name.strip()] = value
    return pairs


class _VariableText(str):
    """An option's default that comes from a variable; argparse converts it like a given text."""

    __slots__ = ("variable",)
    variable: str

    def __new__(cls, variable: str, text: str) -> _VariableText:
        instance = super().__new__(cls, text)
        instance.variable = variable
        return instance


class _Converter:
    """From text to value, for a flag and for the variable behind it."""

    def __init__(
        self, convert: Callable[[str], Any], choices: tuple[str, ...], separator: str | None
    ) -> None:
        self._convert = convert
        self._choices = choices
        self._separator = separator

    def __call__(self, text: str) -> Any:
        if isinstance(text, _VariableText):
            try:
                if self._separator is None:
                    return self._one(str(text))
                return [self._one(item) for item in text.split(self._separator) if item]
            except argparse.ArgumentTypeError as error:
                raise argparse.ArgumentTypeError(f"variable {text.variable}: {error}") from None
        return self._one(text)

    def _one(self, text: str) -> Any:
        if self._choices and text not in self._choices:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not possible; choose from {', '.join(self._choices)}."
                f"{did_you_mean(text, self._choices)}"
            )
        try:
            return self._convert(text)
        except ValueError as error:
            names = {int: "a whole number", float: "a number"}
            wanted = names.get(self._convert)  # type: ignore[call-overload]
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}" if wanted else str(error)) from None


class _Collect(argparse.Action):
    """Collects the values of a repeated flag; the first replaces the default."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        current = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [values] if current is self.default else [*current, values])


class _Switch(argparse.Action):
    """Stores whether the flag was given without ``no-``."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, not str(option_string).startswith("--no-"))
