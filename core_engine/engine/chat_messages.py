"""What a conversation may hold, checked and brought into the form that chat templates read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core_engine._text import one_line
from core_engine.errors import InvalidRequest

__all__ = ["plain_messages"]

#: The keys of a message that chat templates read: calls of tools, their results, and earlier reasoning
#: under the two names in use.
_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "thinking")


def plain_messages(messages: object) -> list[dict[str, Any]]:
    """Return ``messages`` as dicts whose content is one text.

    A message has a ``role`` and a ``content``: text, or a list of ``{"type": "text", "text": …}``, whose
    texts are put together with nothing between them. Besides, it may have ``name``, ``tool_calls`` (the
    content may then be missing or None), ``tool_call_id``, ``reasoning_content`` and ``thinking``. Raises
    `InvalidRequest` for anything else, naming the message and what is wrong.
    """
    if not isinstance(messages, list | tuple) or not messages:
        given = "none" if isinstance(messages, list | tuple) else type(messages).__name__
        raise InvalidRequest(
            f'messages must be a list of {{"role": …, "content": …}}, at least one; got {given}', "messages"
        )
    return [_plain(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _plain(place: str, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequest(f"{place} must be an object with a 'role'", "messages")
    unknown = [str(key) for key in message if key not in _KEYS]
    if unknown:
        raise InvalidRequest(
            f"{place} holds {_some(unknown)}, which is not possible; possible: {', '.join(_KEYS)}", "messages"
        )
    plain = dict(message)
    calls, content = plain.get("tool_calls"), plain.get("content")
    if calls is not None and not (
        isinstance(calls, list | tuple) and all(isinstance(call, Mapping) for call in calls)
    ):
        raise InvalidRequest(f"{place}.tool_calls must be a list of objects, got {_shown(calls)}", "messages")
    if content is not None or not calls:
        plain["content"] = _text(f"{place}.content", content)
    return plain


def _text(place: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple) or not content:
        raise InvalidRequest(f"{place} must be text, got {_shown(content)}", "messages")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind is not None and kind != "text":
            raise InvalidRequest(f"{place}[{index}] is of type {kind}; only text is possible", "messages")
        text = part.get("text") if isinstance(part, Mapping) and kind == "text" else None
        if not isinstance(text, str):
            raise InvalidRequest(
                f'{place}[{index}] must be {{"type": "text", "text": …}}, got {_shown(part)}', "messages"
            )
        texts.append(text)
    return "".join(texts)


def _some(names: list[str]) -> str:
    return one_line(", ".join(ascii(name) for name in names))[:80]


def _shown(value: object) -> str:
    return one_line(ascii(value))[:40]
