"""The sampling options as flags, and from flags to `SamplingParams`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from core_engine.cli.options import Container, add_option, add_switch
from core_engine.sampling.params import SamplingParams

__all__ = ["add_sampling_flags", "sampling_params"]


def add_sampling_flags(parser: Container) -> None:
    """Add one flag per option of `SamplingParams`; left out means the model's own default."""
    group = parser.add_argument_group("sampling")
    add_option(group, "--max-tokens", help="most tokens to generate", convert=int)
    add_option(group, "--min-tokens", help="no stop before this many tokens", convert=int)
    add_option(group, "--temperature", help="0 takes the most likely token", convert=float)
    add_option(group, "--top-k", help="keep the k most likely tokens; 0 keeps all", convert=int)
    add_option(group, "--top-p", help="keep the most likely tokens up to this probability", convert=float)
    add_option(group, "--min-p", help="drop tokens below this share of the likeliest", convert=float)
    add_option(group, "--repetition-penalty", help="above 1 discourages repetition", convert=float)
    add_option(group, "--presence-penalty", help="subtracted once for tokens in the output", convert=float)
    add_option(group, "--frequency-penalty", help="subtracted per occurrence in the output", convert=float)
    add_option(group, "--seed", help="makes sampling repeatable", convert=int)
    add_option(group, "--n", help="sequences per prompt", convert=int)
    add_option(group, "--stop", help="string that ends the output; may be repeated", separator="\n")
    add_option(
        group,
        "--stop-token-ids",
        help="token id that ends the output; may be repeated",
        convert=int,
        separator=",",
        metavar="ID",
    )
    add_switch(group, "--include-stop-str-in-output", help="keep the stop string", default=None)
    add_switch(group, "--ignore-eos", help="go on past end-of-sequence tokens", default=None)
    add_option(
        group,
        "--logit-bias",
        help="number added to a token's logit; may be repeated",
        convert=_parse_bias,
        separator=",",
        metavar="ID=BIAS",
    )
    add_option(
        group,
        "--bad-words",
        help="string that must not appear; may be repeated",
        separator="\n",
        metavar="TEXT",
    )
    add_option(group, "--logprobs", help="report this many likely tokens per output token", convert=int)
    add_option(group, "--prompt-logprobs", help="the same for the prompt", convert=int)
    add_switch(group, "--skip-special-tokens", help="leave special tokens out of the text", default=None)


def sampling_params(args: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    """Return ``defaults`` with the given flags applied. Raises `InvalidRequest` as `SamplingParams` does."""
    names = [field for field in SamplingParams.__dataclass_fields__ if hasattr(args, field)]
    given: dict[str, Any] = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if "logit_bias" in given:
        given["logit_bias"] = dict(given["logit_bias"])
    return replace(defaults, **given)


def _parse_bias(text: str) -> tuple[int, float]:
    token_id, equals, bias = text.partition("=")
    try:
        if not equals:
            raise ValueError
        return int(token_id), float(bias)
    except ValueError:
        raise ValueError(f"{text!r} is not of the form ID=BIAS, e.g. 42=-100") from None
