"""How one request wants its tokens chosen. Torch-free; checked in `core_engine.sampling.validate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["SamplingParams"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """The options of one request; the defaults sample from the model's own distribution.

    The order is: bias, penalties, temperature, min_p, top_k, top_p. Every value is checked on
    construction; a wrong one raises `InvalidRequest` that names the field, the value and the range.
    Sequences may be given as lists and are held as tuples.
    """

    #: How many sequences to generate from the prompt, 1 to 128; each has its own stream of noise.
    n: int = 1
    #: The most tokens to generate; None means 256.
    max_tokens: int | None = None
    #: No end-of-sequence id, stop id or stop string counts before this many tokens.
    min_tokens: int = 0
    #: Divides the logits, 0 to 2; 0 takes the most likely token.
    temperature: float = 1.0
    #: Keep the k most likely tokens; 0 and −1 keep all.
    top_k: int = 0
    #: Keep the smallest set of most likely tokens whose probabilities reach this sum; above 0, at most 1.
    top_p: float = 1.0
    #: Drop tokens less likely than this share of the most likely one, 0 to 1.
    min_p: float = 0.0
    #: Divides positive and multiplies negative logits of tokens seen in prompt or output; above 0, at
    #: most 10.
    repetition_penalty: float = 1.0
    #: Subtracted once from the logits of tokens in the output, −2 to 2.
    presence_penalty: float = 0.0
    #: Subtracted from the logits of tokens in the output, once per occurrence, −2 to 2.
    frequency_penalty: float = 0.0
    #: 0 ≤ seed < 2**64; None draws one at admission.
    seed: int | None = None
    #: Strings that end the output; they are cut off unless ``include_stop_str_in_output``. One string
    #: or several, held as a tuple.
    stop: str | Sequence[str] = ()
    #: Token ids that end the output, besides the model's own end-of-sequence ids; they stay in
    #: ``token_ids``.
    stop_token_ids: Sequence[int] = ()
    #: Keep the stop string that ended the output at the end of the text.
    include_stop_str_in_output: bool = False
    #: Go on past the model's end-of-sequence ids.
    ignore_eos: bool = False
    #: Token id → number added to its logit, −100 to 100.
    logit_bias: Mapping[int, float] | None = None
    #: Strings whose token sequences must not appear in the output.
    bad_words: Sequence[str] = ()
    #: Log-probabilities for each output token: the token's own plus this many of the most likely.
    logprobs: int | None = None
    #: The same for each prompt token but the first.
    prompt_logprobs: int | None = None
    #: Leave special tokens out of the text.
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        from core_engine.sampling.validate import check_params

        check_params(self)
