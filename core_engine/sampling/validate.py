"""The one place where sampling parameters are checked. Torch-free.

`check_params` runs when a `SamplingParams` is built and needs nothing but its fields;
`check_against_model` runs when the request meets an engine and needs the vocabulary and the backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from core_engine.errors import InvalidRequest, UnsupportedFeature

if TYPE_CHECKING:
    from core_engine.plugin._capabilities import Capabilities
    from core_engine.sampling.params import SamplingParams

__all__ = ["MAX_N", "check_against_model", "check_params"]

#: The most sequences that one request may ask for.
MAX_N = 128
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Range:
    """The values that one numeric field may take."""

    low: float
    high: float | None
    integral: bool = False
    low_allowed: bool = True
    optional: bool = False

    @property
    def words(self) -> str:
        """Say the range, e.g. "between 0 and 2" or "an integer of at least 1"."""
        noun = "an integer " if self.integral else ""
        if self.high is None:
            text = f"{noun}of at least {self.low:g}"
        elif self.low_allowed:
            text = f"{noun}between {_number(self.low)} and {_number(self.high)}"
        else:
            text = f"{noun}above {_number(self.low)} and at most {_number(self.high)}"
        return text + (" or None" if self.optional else "")

    def holds(self, value: Any) -> bool:
        """Say whether ``value`` lies in the range; False for NaN."""
        above = value >= self.low if self.low_allowed else value > self.low
        return above and (self.high is None or value <= self.high)


def _number(value: float) -> str:
    return "2**64 - 1" if value == 2**64 - 1 else f"{value:g}" if abs(value) < 1e6 else str(int(value))


_RANGES: Mapping[str, _Range] = {
    "n": _Range(1, MAX_N, integral=True),
    "max_tokens": _Range(1, _INT32_MAX, integral=True, optional=True),
    "min_tokens": _Range(0, _INT32_MAX, integral=True),
    "temperature": _Range(0, 2),
    "top_k": _Range(-1, _INT32_MAX, integral=True),
    "top_p": _Range(0, 1, low_allowed=False),
    "min_p": _Range(0, 1),
    "repetition_penalty": _Range(0, 10, low_allowed=False),
    "presence_penalty": _Range(-2, 2),
    "frequency_penalty": _Range(-2, 2),
    "seed": _Range(0, 2**64 - 1, integral=True, optional=True),
    "logprobs": _Range(0, None, integral=True, optional=True),
    "prompt_logprobs": _Range(0, None, integral=True, optional=True),
}
_SWITCHES = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens")
_BIAS = _Range(-100, 100)
_TOKEN_ID = _Range(0, _INT32_MAX, integral=True)


def check_params(params: SamplingParams) -> None:
    """Check every field and bring it into one form.

    Afterwards numbers are plain ``int`` and ``float``, sequences are tuples (one stop string becomes a
    tuple of one), ``logit_bias`` is a dict of its own, and ``top_k`` −1 has become 0. Raises
    `InvalidRequest` that names the field, the range and the value.
    """
    for name, allowed in _RANGES.items():
        value = getattr(params, name)
        if value is not None or not allowed.optional:
            _set(params, name, _checked_number(name, value, allowed))
    if params.top_k == -1:
        _set(params, "top_k", 0)
    for name in _SWITCHES:
        if not isinstance(getattr(params, name), bool):
            raise InvalidRequest(f"{name} must be True or False, got {getattr(params, name)!r}", name)
    _set(params, "stop", _checked_strings("stop", params.stop, one_allowed=True))
    _set(params, "bad_words", _checked_strings("bad_words", params.bad_words, one_allowed=False))
    _set(params, "stop_token_ids", _checked_ids("stop_token_ids", params.stop_token_ids))
    if params.logit_bias is not None:
        _set(params, "logit_bias", _checked_bias(params.logit_bias))
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidRequest(
            f"min_tokens must be at most max_tokens ({params.max_tokens}), got {params.min_tokens}",
            "min_tokens",
        )


def check_against_model(
    params: SamplingParams, vocab_size: int, capabilities: Capabilities, backend: str
) -> None:
    """Check what only the model and the backend can tell.

    Raises `InvalidRequest` for token ids outside the vocabulary and `UnsupportedFeature`, naming
    ``backend``, for log-probabilities that it does not offer.
    """
    for name, ids in (("stop_token_ids", params.stop_token_ids), ("logit_bias", params.logit_bias or ())):
        for token_id in ids:
            if token_id >= vocab_size:
                raise InvalidRequest(
                    f"{name} must hold token ids between 0 and {vocab_size - 1}, got {token_id}", name
                )
    if params.prompt_logprobs is not None and not capabilities.prompt_logprobs:
        raise UnsupportedFeature(
            f"prompt_logprobs was asked for, but the {backend} backend does not offer it; leave it out"
        )
    most = min(capabilities.max_logprobs, vocab_size)
    for name, count in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        if count is None:
            continue
        if capabilities.max_logprobs == 0:
            raise UnsupportedFeature(
                f"{name} was asked for, but the {backend} backend offers no log-probabilities; leave it out"
            )
        if count > most:
            raise UnsupportedFeature(
                f"{name} must be at most {most} on the {backend} backend, got {count}; ask for fewer"
            )


def _set(params: SamplingParams, name: str, value: object) -> None:
    # The dataclass is frozen for its users; this runs inside its construction.
    object.__setattr__(params, name, value)


def _checked_number(name: str, value: Any, allowed: _Range, param: str | None = None) -> int | float:
    param = param or name
    number_type = Integral if allowed.integral else Real
    if isinstance(value, bool) or not isinstance(value, number_type):
        words = allowed.words if allowed.integral else f"a number {allowed.words}"
        raise InvalidRequest(f"{name} must be {words}, got {value!r}", param)
    if not allowed.holds(value):
        raise InvalidRequest(f"{name} must be {allowed.words}, got {value}", param)
    return int(value) if allowed.integral else float(value)  # type: ignore[call-overload] # Real has both


def _checked_strings(name: str, value: Any, *, one_allowed: bool) -> tuple[str, ...]:
    if isinstance(value, str):
        if not one_allowed:
            raise InvalidRequest(f"{name} must be a list of strings, got {value!r}", name)
        value = (value,)
    if not isinstance(value, Sequence):
        raise InvalidRequest(f"{name} must be a list of strings, got {value!r}", name)
    for text in value:
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"{name} must hold strings that are not empty, got {text!r}", name)
    return tuple(value)


def _checked_ids(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidRequest(f"{name} must be a list of token ids, got {value!r}", name)
    return tuple(int(_checked_number(f"each of {name}", v, _TOKEN_ID, name)) for v in value)


def _checked_bias(value: Any) -> dict[int, float]:
    name = "logit_bias"
    if not isinstance(value, Mapping):
        raise InvalidRequest(
            f"{name} must map token ids to numbers between -100 and 100, got {value!r}", name
        )
    bias = {}
    for token_id, number in value.items():
        checked_id = int(_checked_number(f"each token id of {name}", token_id, _TOKEN_ID, name))
        bias[checked_id] = float(_checked_number(f"{name} of token {token_id}", number, _BIAS, name))
    return bias
