"""A conversation is checked before the chat template sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from core_engine.engine.chat_messages import plain_messages
from core_engine.errors import InvalidRequest


def generator() -> Iterator[dict[str, str]]:
    yield {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "messages",
    [{"role": "user", "content": "hi"}, None, generator(), [], (), "hi", b"hi", 7, {"role"}],
    ids=["object", "none", "generator", "empty list", "empty tuple", "text", "bytes", "number", "set"],
)
def test_anything_but_a_list_of_messages_is_refused(messages: object) -> None:
    with pytest.raises(InvalidRequest, match="messages must be a list of") as caught:
        plain_messages(messages)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("message", ["hi", None, {}, {"content": "hi"}, {"role": 1, "content": "hi"}])
def test_a_message_without_a_role_is_named(message: object) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\] must be an object with a 'role'"):
        plain_messages([{"role": "user", "content": "hi"}, message])


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "Good "}, {"type": "text", "text": "day"}]

    assert plain_messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": "Good day"}]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (["hey"], r"content\[0\] must be .*, got 'hey'"),
        ([{"text": "hey"}], r"content\[0\] must be"),
        ([{"type": "text"}], r"content\[0\] must be"),
        ([{"type": "text", "text": 3}], r"content\[0\] must be"),
        (
            [{"type": "text", "text": "a"}, {"type": "image_url"}],
            r"content\[1\] is of type image_url; only text",
        ),
        ([None], r"content\[0\] must be"),
        ([], "content must be text, got"),
        (None, "content must be text, got None"),
        ({"type": "text", "text": "hey"}, "content must be text, got"),
        (b"hey", "content must be text, got"),
    ],
)
def test_content_that_is_not_text_is_refused(content: object, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"messages\[0\]\.{reason}") as caught:
        plain_messages([{"role": "user", "content": content}])
    assert "\n" not in str(caught.value)


def test_unknown_keys_are_named_with_what_is_possible() -> None:
    message = {"role": "user", "content": "hi", "images": [], "audio": None}

    with pytest.raises(
        InvalidRequest, match=r"messages\[0\] holds 'images', 'audio', which .* possible: role, content, name"
    ):
        plain_messages([message])


def test_calls_of_tools_and_their_results_reach_the_template() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": {}}}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "assistant", "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "name": "now", "content": "noon"},
    ]

    assert plain_messages(messages) == messages


@pytest.mark.parametrize("calls", ["now", ["now"], {"name": "now"}, 1])
def test_calls_of_tools_that_are_no_objects_are_refused(calls: object) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.tool_calls must be a list of objects"):
        plain_messages([{"role": "assistant", "content": "", "tool_calls": calls}])


def test_the_messages_of_the_caller_stay_as_they_are() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "hi"}]}

    plain_messages([message])

    assert message["content"] == [{"type": "text", "text": "hi"}]
