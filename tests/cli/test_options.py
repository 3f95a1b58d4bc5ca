from __future__ import annotations

import argparse
from typing import Any

import pytest

from core_engine.cli.options import LineParser, add_option, add_switch, parse_pairs, variable_of
from core_engine.errors import ConfigError


def parse(arguments: list[str], **environment: str) -> argparse.Namespace:
    parser = LineParser(prog="tool")
    common: dict[str, Any] = {"environment": environment}
    add_option(parser, "-m", "--max-model-len", help="tokens", convert=int, default=128, **common)
    add_option(parser, "--dtype", help="type", choices=("auto", "float32"), **common)
    add_option(parser, "--stop", help="strings", default=[], separator=",", **common)
    add_switch(parser, "--enforce-eager", help="no graphs", **common)
    return parser.parse_args(arguments)


def test_a_variable_has_the_flags_name() -> None:
    assert variable_of("--max-model-len") == "CORE_ENGINE_MAX_MODEL_LEN"


def test_defaults_hold_where_neither_is_given() -> None:
    args = parse([])
    assert (args.max_model_len, args.dtype, args.stop, args.enforce_eager) == (128, None, [], False)


def test_a_variable_stands_for_a_flag() -> None:
    args = parse(
        [],
        CORE_ENGINE_MAX_MODEL_LEN="64",
        CORE_ENGINE_DTYPE="float32",
        CORE_ENGINE_STOP="a,b",
        CORE_ENGINE_ENFORCE_EAGER="1",
    )
    assert (args.max_model_len, args.dtype, args.stop, args.enforce_eager) == (
        64,
        "float32",
        ["a", "b"],
        True,
    )


def test_the_flag_wins() -> None:
    args = parse(
        ["--max-model-len", "32", "--dtype", "auto", "--stop", "x", "--stop", "y,z", "--no-enforce-eager"],
        CORE_ENGINE_MAX_MODEL_LEN="64",
        CORE_ENGINE_DTYPE="float32",
        CORE_ENGINE_STOP="a,b",
        CORE_ENGINE_ENFORCE_EAGER="1",
    )
    assert (args.max_model_len, args.dtype, args.stop, args.enforce_eager) == (
        32,
        "auto",
        ["x", "y,z"],
        False,
    )


def test_a_wrong_variable_behind_a_given_flag_is_not_read() -> None:
    assert parse(["--max-model-len", "32"], CORE_ENGINE_MAX_MODEL_LEN="many").max_model_len == 32


def test_an_empty_variable_counts_as_unset() -> None:
    assert parse([], CORE_ENGINE_MAX_MODEL_LEN="").max_model_len == 128


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("CORE_ENGINE_MAX_MODEL_LEN", "many", "CORE_ENGINE_MAX_MODEL_LEN: 'many' is not a whole number"),
        ("CORE_ENGINE_DTYPE", "floot32", r"CORE_ENGINE_DTYPE: 'floot32' .*Did you mean 'float32'\?"),
        ("CORE_ENGINE_ENFORCE_EAGER", "perhaps", "CORE_ENGINE_ENFORCE_EAGER: 'perhaps' is neither"),
    ],
)
def test_an_error_in_a_variable_names_the_variable(variable: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse([], **{variable: text})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-model-len", "many"], r"--max-model-len: 'many' is not a whole number \(see tool --help\)"),
        (["--dtype", "floot32"], r"--dtype: 'floot32' is not possible; choose from auto, float32"),
        (["--dtype"], "--dtype: expected one argument"),
        (["--max-model", "3"], "unrecognized arguments: --max-model 3"),
    ],
)
def test_an_error_in_a_flag_is_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        parse(arguments)
    assert "\n" not in str(raised.value)


def test_help_names_the_variable_and_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "tokens (default: 128) [CORE_ENGINE_MAX_MODEL_LEN]" in text


def test_options_may_stand_in_a_group() -> None:
    parser = LineParser(prog="tool")
    add_option(parser.add_argument_group("sampling"), "--seed", help="seed", convert=int)
    assert parser.parse_args(["--seed", "7"]).seed == 7


def test_pairs_become_a_mapping() -> None:
    assert parse_pairs(["a=1", "b=x=y", "c="], "--backend-option") == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("text", ["a", "=1", " =1"])
def test_a_pair_needs_a_name_and_a_sign(text: str) -> None:
    with pytest.raises(ConfigError, match="--backend-option takes name=value"):
        parse_pairs([text], "--backend-option")
