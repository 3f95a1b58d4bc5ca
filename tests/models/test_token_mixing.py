"""Operations that carry one token's row into another's are noticed; the rest of a model is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental import _config as fx_config

from core_engine.models.token_mixing import TokenMixingProbe, probe_length

T = 29


def watch(function: Callable[[torch.Tensor], object]) -> str | None:
    rows = torch.empty(1, T, 16, device="meta")
    with TokenMixingProbe(T) as probe:
        result = function(rows)
    found = probe.found
    del result
    return found


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("convolution", lambda x: torch.conv1d(x.transpose(1, 2), torch.empty(16, 16, 3, device="meta"))),
        ("cumsum", lambda x: x.cumsum(1)),
        ("mean", lambda x: x.mean(dim=1)),
        ("sum of everything", lambda x: x.sum()),
        ("shift", lambda x: x[:, :-1]),
        ("padding", lambda x: torch.nn.functional.pad(x, (0, 0, 1, 0))),
        ("attention of its own", lambda x: (x @ x.transpose(1, 2)).softmax(-1) @ x),
        ("norm over tokens", lambda x: x.norm(p=1.0, dim=1)),
        ("roll", lambda x: x.roll(1, 1)),
        ("sort", lambda x: x[..., 0].sort(dim=-1)),
    ],
)
def test_mixing_is_noticed(name: str, function: Callable[[torch.Tensor], object]) -> None:
    assert watch(function) is not None


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("linear", lambda x: torch.nn.functional.linear(x, torch.empty(8, 16, device="meta"))),
        ("norm", lambda x: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()),
        ("norm of each row", lambda x: x.norm(p=1.0, dim=-1, keepdim=True)),
        ("layer norm", lambda x: torch.nn.functional.layer_norm(x, (16,))),
        ("split", lambda x: x.chunk(2, dim=-1)),
        ("router", lambda x: x.softmax(-1).topk(2, dim=-1)),
        ("heads", lambda x: x.view(1, T, 4, 4).transpose(1, 2)),
        ("half", lambda x: x[..., :8]),
    ],
)
def test_rows_that_stay_apart_pass(name: str, function: Callable[[torch.Tensor], object]) -> None:
    assert watch(function) is None


def add_in_place(x: torch.Tensor) -> torch.Tensor:
    return x.clone().add_(x.mean(1, keepdim=True))


def change_some_tokens(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[:, 1:].add_(1)
    return x


def add_as_often_as_experts_are_hit(x: torch.Tensor) -> torch.Tensor:
    with fx_config.patch(meta_nonzero_assume_all_nonzero=True):  # type: ignore[attr-defined]
        for _ in (x.sum(1)[0] > 0).nonzero():
            x = x + 1
    return x


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("met another tensor", lambda x: x + (x.amax() + 1)),
        ("met it in a list", lambda x: torch.cat([x, x.cumsum(1)], -1)),
        ("met it in place", add_in_place),
        ("was changed in place", change_some_tokens),
        ("was returned after more arithmetic", lambda x: (x.mean(1) + 1).exp()),
        ("made a shape", add_as_often_as_experts_are_hit),
    ],
)
def test_mixing_is_noticed_wherever_its_result_went(
    name: str, function: Callable[[torch.Tensor], object]
) -> None:
    assert watch(function) is not None


def test_mixing_is_noticed_when_something_keeps_its_result() -> None:
    state = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        state["last"] = x[:, -1] * 2
        return x

    assert watch(keep) == "select"


def test_mixing_that_comes_to_nothing_passes() -> None:
    def compute_a_length_for_nothing(x: torch.Tensor) -> torch.Tensor:
        length = x[..., 0].max() + 1
        del length
        return x * 2

    assert watch(compute_a_length_for_nothing) is None


def test_the_number_of_tokens_divides_no_dimension_of_the_model() -> None:
    model = torch.nn.Linear(29 * 31, 58, device="meta")

    length = probe_length(model)

    assert length == 37
