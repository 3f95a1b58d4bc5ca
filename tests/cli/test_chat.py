from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest
from cli.conftest import FORBID_ALL, Shell

GREEDY = ("--temperature", "0", "--max-tokens", "6", "--ignore-eos")

Run = Callable[..., Shell]


def test_a_prompt_is_answered_once(on_model: Run) -> None:
    shell = on_model("chat", "--prompt", "hi", *GREEDY)
    assert shell.code == 0
    assert shell.out.endswith("\n")
    assert "first token after" in shell.err


def test_an_answer_that_ends_with_an_error_is_named_and_the_talk_goes_on(
    on_model: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = on_model("chat", "--prompt", "hi", *GREEDY, *FORBID_ALL)
    assert shell.code == 1
    assert "core-engine: error: the model gave no token" in shell.err

    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\nhi\n"))
    shell = on_model("chat", *GREEDY, *FORBID_ALL)
    assert shell.code == 1
    assert shell.err.count("core-engine: error: the model gave no token") == 2


def test_lines_make_one_conversation_until_it_is_reset(
    on_model: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n\nhi\n/reset\nhi\n"))
    shell = on_model("chat", *GREEDY, "--no-skip-special-tokens", "--bad-words", "\n")
    assert shell.code == 0
    first, second, third, _ = shell.out.split("\n")
    assert first == third
    assert first != second


def test_a_question_that_does_not_fit_is_said_and_the_talk_goes_on(
    on_model: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("x" * 400 + "\nhi\n"))
    shell = on_model("chat", *GREEDY)
    assert shell.code == 0
    assert "fit into the context" in shell.err
    assert shell.err.count("first token after") == 1


def test_a_system_message_changes_the_answer(on_model: Run) -> None:
    plain = on_model("chat", "--prompt", "hi", *GREEDY).out
    assert on_model("chat", "--prompt", "hi", "--system", "Be brief.", *GREEDY).out != plain


def test_more_than_one_answer_is_refused(on_model: Run) -> None:
    shell = on_model("chat", "--prompt", "hi", "--n", "2")
    assert (shell.code, shell.out) == (2, "")
    assert "--n" in shell.err
