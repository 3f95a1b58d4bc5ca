"""``core-engine chat``: talk with a model."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from core_engine.cli.engine_flags import add_engine_flags, engine_options, model_of
from core_engine.cli.lora_flag import add_lora_flag, lora_options, lora_request
from core_engine.cli.options import add_option
from core_engine.cli.results import EXIT_ANSWER_FAILED, Results
from core_engine.cli.sampling_flags import add_sampling_flags, sampling_params
from core_engine.cli.speed import speed_line
from core_engine.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from core_engine.engine.request_stream import RequestStream

__all__ = ["add_arguments", "run"]

Conversation = list[dict[str, str]]
#: Streams the answer to a conversation.
Ask = Callable[[Conversation], "RequestStream"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_engine_flags(parser)
    add_option(parser, "--prompt", help="answer this once and exit", metavar="TEXT")
    add_option(parser, "--system", help="system message", metavar="TEXT")
    add_lora_flag(parser)
    add_sampling_flags(parser)


def run(args: argparse.Namespace, results: Results) -> int:
    """Answer ``--prompt``, or each line of stdin in one conversation."""
    from core_engine import LLM, SamplingParams

    if args.prompt is None and sys.stdin is None:
        raise ConfigError("stdin is closed, so there is nothing to answer: use --prompt TEXT")
    if sampling_params(args, SamplingParams()).n != 1:
        raise ConfigError("a chat has one answer to each question: leave --n at 1, or use generate")
    opening: Conversation = [{"role": "system", "content": args.system}] if args.system else []
    lora = lora_request(args)
    with LLM(model_of(args), **engine_options(args) | lora_options(args)) as llm:
        params = sampling_params(args, llm.engine.default_params)
        ask = partial(llm.stream_chat, params=params, lora=lora)
        if args.prompt is not None:
            question = {"role": "user", "content": args.prompt}
            has_failed = _answer(ask, [*opening, question], results) is None
        else:
            has_failed = _converse(ask, opening, results)
    return EXIT_ANSWER_FAILED if has_failed else 0


def _converse(ask: Ask, opening: Conversation, results: Results) -> bool:
    """Answer line by line; returns whether an answer ended with an error, which the talk goes on without."""
    if sys.stdin.isatty():
        print("Ctrl-D ends, Ctrl-C stops an answer, /reset forgets the conversation.", file=sys.stderr)
    messages, has_failed = list(opening), False
    while (line := _read_line()) is not None:
        if not line.strip():
            continue
        if line.strip() == "/reset":
            messages = list(opening)
            continue
        question = {"role": "user", "content": line}
        try:
            answer = _answer(ask, [*messages, question], results)
        except InvalidRequest as error:
            print(f"core-engine: {error}", file=sys.stderr)
            continue
        if answer is None:
            has_failed = True
            continue
        messages += [question, {"role": "assistant", "content": answer}]
    return has_failed


def _read_line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _answer(ask: Ask, messages: Conversation, results: Results) -> str | None:
    """Print an answer as it comes and return it; None after one that ended with an error."""
    parts: list[str] = []
    error: str | None = None
    started_s, first_s, num_tokens = time.perf_counter(), None, 0
    chunks = ask(messages)
    try:
        for chunk in chunks:
            first_s = first_s or time.perf_counter()
            num_tokens += len(chunk.token_ids)
            parts.append(chunk.text)
            print(chunk.text, end="", flush=True, file=results)
            error = chunk.error
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    print(flush=True, file=results)
    print(speed_line(num_tokens, started_s, first_s), file=sys.stderr)
    if error is not None:
        print(f"core-engine: error: {error}", file=sys.stderr)
        return None
    return "".join(parts)
