from __future__ import annotations

import pytest

from core_engine.backends.options import check_schema, parse_options
from core_engine.errors import ConfigError, ContractError
from core_engine.plugin import BackendOption

SCHEMA = (
    BackendOption(name="threads", help="how many threads", type="int"),
    BackendOption(name="share", help="share of memory", type="float", default=0.5),
    BackendOption(name="pin", help="pin the threads", type="bool", default=True),
    BackendOption(name="kernel", help="which kernel", default="fast", choices=("fast", "exact")),
)


def parse(**texts: str) -> dict[str, object]:
    return dict(parse_options(texts, SCHEMA, "acme"))


def test_defaults_are_filled_in() -> None:
    assert parse() == {"threads": None, "share": 0.5, "pin": True, "kernel": "fast"}


def test_texts_become_typed_values() -> None:
    assert parse(threads="4", share="0.25", pin="off", kernel="exact") == {
        "threads": 4,
        "share": 0.25,
        "pin": False,
        "kernel": "exact",
    }


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"thread": "4"}, r"'acme' has no option 'thread'.*Did you mean 'threads'\?"),
        ({"threads": "four"}, r"'threads' of backend 'acme' takes a value of type int, got 'four'"),
        ({"pin": "maybe"}, "'pin' .*type bool, got 'maybe'"),
        ({"kernel": "exac"}, r"'kernel' .*possible are fast, exact\. Did you mean 'exact'\?"),
    ],
)
def test_what_does_not_fit_is_an_error_that_says_what_does(texts: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_options(texts, SCHEMA, "acme")


def test_a_backend_without_options_takes_none() -> None:
    with pytest.raises(ConfigError, match="it takes none"):
        parse_options({"x": "1"}, (), "acme")


@pytest.mark.parametrize(
    "option", [BackendOption(name="threads", help=""), BackendOption(name="new", help="", type="list")]
)
def test_a_schema_with_a_repeated_name_or_unknown_type_breaks_the_contract(option: BackendOption) -> None:
    with pytest.raises(ContractError, match=f"acme .*{option.name}"):
        check_schema((*SCHEMA, option), "acme")


@pytest.mark.parametrize(("kind", "default"), [("int", "4"), ("int", True), ("str", 4), ("bool", 1)])
def test_a_default_is_of_the_options_type(kind: str, default: str | int) -> None:
    with pytest.raises(ContractError, match=f"acme gives option 'a' of type {kind} the default {default!r}"):
        check_schema((BackendOption(name="a", help="", type=kind, default=default),), "acme")
