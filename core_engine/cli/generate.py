"""``core-engine generate``: complete prompts."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from core_engine.cli.engine_flags import add_engine_flags, engine_options, model_of
from core_engine.cli.lora_flag import add_lora_flag, lora_options, lora_request
from core_engine.cli.options import add_option, add_switch
from core_engine.cli.results import EXIT_ANSWER_FAILED, Results
from core_engine.cli.sampling_flags import add_sampling_flags, sampling_params
from core_engine.cli.speed import draft_note, speed_line
from core_engine.engine.outputs import CompletionOutput, RequestOutput
from core_engine.errors import ConfigError, InvalidRequest

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_engine_flags(parser)
    add_option(
        parser,
        "--prompt",
        help="text to complete; may be repeated; '-' reads one prompt per line from stdin",
        separator="\n",
        metavar="TEXT",
    )
    add_switch(parser, "--json", help="print a JSON list and nothing else on stdout")
    add_switch(parser, "--progress", help="show a progress bar on stderr", default=None)
    add_lora_flag(parser)
    add_sampling_flags(parser)


def run(args: argparse.Namespace, results: Results) -> int:
    """Generate and print; one prompt is streamed, several are printed when all are done.

    Returns 1 when an answer ended with an error, after a line on stderr for each.
    """
    from core_engine import LLM, SamplingParams

    model, prompts = model_of(args), _read_prompts(args.prompt)
    # What can be known to be wrong costs no start of an engine.
    sampling_params(args, SamplingParams())
    if "" in prompts:
        raise InvalidRequest(f"prompt {prompts.index('') + 1} is empty; give some text", "prompt")
    lora = lora_request(args)
    with LLM(model, **engine_options(args) | lora_options(args)) as llm:
        params = sampling_params(args, llm.engine.default_params)
        started_s = time.perf_counter()
        errors: list[str] = []
        if len(prompts) == 1 and params.n == 1 and not args.json:
            num_tokens, first_s = 0, None
            for chunk in llm.stream(prompts[0], params, lora=lora):
                first_s = first_s or time.perf_counter()
                num_tokens += len(chunk.token_ids)
                print(chunk.text, end="", flush=True, file=results)
                errors += [chunk.error] if chunk.error else []
            print(flush=True, file=results)
        else:
            outputs = llm.generate(prompts, params, lora=lora, progress=args.progress)
            num_tokens = sum(len(s.token_ids) for output in outputs for s in output.outputs)
            first_s, errors = None, _errors(outputs)
            print(_to_json(outputs) if args.json else _to_text(outputs), file=results)
        stats = llm.engine.core.scheduler.stats()
        print(speed_line(num_tokens, started_s, first_s) + draft_note(stats), file=sys.stderr)
    for error in errors:
        print(f"core-engine: error: {error}", file=sys.stderr)
    return EXIT_ANSWER_FAILED if errors else 0


def _read_prompts(given: list[str] | None) -> list[str]:
    prompts: list[str] = []
    for text in given or []:
        if text != "-":
            prompts.append(text)
        elif sys.stdin is None:
            raise ConfigError("--prompt - reads the prompts from stdin, which is closed")
        else:
            try:
                prompts += (line.rstrip("\r\n") for line in sys.stdin)
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"--prompt - cannot read stdin: {error}") from None
    if not prompts:
        raise ConfigError(
            "no prompt given: use --prompt TEXT, or --prompt - with one prompt per line on stdin"
        )
    return prompts


def _placed(outputs: Iterable[RequestOutput]) -> Iterator[tuple[str, RequestOutput, CompletionOutput]]:
    """Yield each sequence under its place: the prompt's number, and its own where there are several."""
    for number, output in enumerate(outputs, start=1):
        for sequence in output.outputs:
            place = f"{number}" if len(output.outputs) == 1 else f"{number}.{sequence.index + 1}"
            yield place, output, sequence


def _errors(outputs: Iterable[RequestOutput]) -> list[str]:
    return [f"answer {place}: {sequence.error}" for place, _, sequence in _placed(outputs) if sequence.error]


def _to_text(outputs: Iterable[RequestOutput]) -> str:
    return "\n\n".join(f"[{place}] {o.prompt}\n{sequence.text}" for place, o, sequence in _placed(outputs))


def _to_json(outputs: Iterable[RequestOutput]) -> str:
    rows = [_row(output, sequence) for output in outputs for sequence in output.outputs]
    return json.dumps(rows, ensure_ascii=False, indent=2)


def _row(output: RequestOutput, sequence: CompletionOutput) -> dict[str, Any]:
    num_prompt, num_output = len(output.prompt_token_ids), len(sequence.token_ids)
    row: dict[str, Any] = {
        "prompt": output.prompt,
        "index": sequence.index,
        "text": sequence.text,
        "token_ids": sequence.token_ids,
        "finish_reason": sequence.finish_reason,
        "stop_reason": sequence.stop_reason,
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "cached_tokens": output.num_cached_tokens,
        },
    }
    if sequence.error is not None:
        row["error"] = sequence.error
    if sequence.logprobs is not None:
        row["logprobs"] = [_logprobs(candidates) for candidates in sequence.logprobs]
    if output.prompt_logprobs is not None:
        row["prompt_logprobs"] = [
            None if candidates is None else _logprobs(candidates) for candidates in output.prompt_logprobs
        ]
    return row


def _logprobs(candidates: Any) -> list[dict[str, Any]]:
    return [
        {"token_id": token_id, "token": c.decoded_token, "logprob": c.logprob, "rank": c.rank}
        for token_id, c in candidates.items()
    ]
