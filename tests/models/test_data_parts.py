"""A part that needs data is replaced in the probing passes only if data show that it keeps tokens apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from core_engine.models.data_parts import DataParts
from core_engine.models.probing_passes import recorded_calls, without_data
from core_engine.models.token_mixing import TokenMixingProbe

T = 29
HIDDEN = 16


class Experts(nn.Module):
    """Loops over the experts that were hit, which cannot run on the meta device."""

    def __init__(self, capacity: int = 1000) -> None:
        super().__init__()
        self.capacity = capacity
        self.weight = nn.Parameter(torch.empty(4, HIDDEN, HIDDEN))

    def forward(self, hidden_states: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        output = torch.zeros_like(hidden_states)
        for expert in experts.unique().tolist():
            rows = (experts == expert).nonzero()[:, 0][: self.capacity]
            output[rows] = hidden_states[rows] @ self.weight[expert]
        return output


class Mixture(nn.Module):
    """Sends each row to its best expert."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.router = nn.Linear(HIDDEN, 4)
        self.experts = Experts(**settings)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        rows = hidden_states.view(-1, HIDDEN)
        return self.experts(rows, self.router(rows).argmax(-1)).view(hidden_states.shape)


class Part(nn.Module):
    """Computes any function after it asked for a value."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, hidden_states: torch.Tensor, position_ids: torch.Tensor) -> object:
        hidden_states.sum().item()
        return self.function(hidden_states, position_ids)


class Backbone(nn.Module):
    def __init__(self, part: nn.Module, parts: int = 1) -> None:
        super().__init__()
        self.parts = nn.ModuleList([part, *[type(part)() for _ in range(parts - 1)]])

    def forward(self, rows: torch.Tensor, positions: torch.Tensor) -> Any:
        outputs = [
            part(rows, position_ids=positions) if isinstance(part, Part) else part(rows)
            for part in self.parts
        ]
        return outputs[-1]


def run(part: nn.Module, number: int = 1) -> tuple[Any, DataParts]:
    with torch.device("meta"):
        backbone = Backbone(part.to("meta"), number)
        rows = torch.empty(1, T, HIDDEN, dtype=torch.bfloat16)
        positions = torch.zeros(1, T, dtype=torch.int64)
    with recorded_calls(backbone) as calls:
        parts = DataParts(backbone, calls, T)
        with without_data(), parts.stand_in(positions):
            try:
                output = backbone(rows, positions)
            except (RuntimeError, NotImplementedError):
                output = None
    return output, parts


def test_a_loop_over_experts_gives_way_to_an_output_of_its_shape() -> None:
    output, parts = run(Mixture(), 2)

    assert output.is_meta
    assert (output.shape, output.dtype) == ((1, T, HIDDEN), torch.bfloat16)
    assert parts.mixing is None


def test_experts_that_drop_tokens_when_full_mix_them() -> None:
    output, parts = run(Mixture(capacity=8))

    assert output is None
    assert parts.mixing == "parts.0"


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("running sum", lambda x, _: x.cumsum(1)),
        ("scale by all rows", lambda x, _: x * x.abs().max()),
        ("shift", lambda x, _: x.roll(1, 1)),
        ("attention of its own", lambda x, _: (4 * x @ x.mT).softmax(-1) @ x),
        ("place in the row", lambda x, _: x * torch.arange(1, x.shape[1] + 1)[:, None]),
        ("longest position", lambda x, p: x * (2.0 if p.max() > 4096 else 1.0)),
        ("second output", lambda x, _: (x, x.cumsum(1))),
    ],
)
def test_a_part_with_data_that_mixes_tokens_is_named(
    name: str, function: Callable[[torch.Tensor, torch.Tensor], object]
) -> None:
    output, parts = run(Part(function))

    assert output is None
    assert parts.mixing == "parts.0"


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("no rows", lambda x, _: x.mean(1)),
        ("a number that differs", lambda x, _: (x, x.shape[1])),
        ("the same for all rows", lambda x, _: torch.ones_like(x)),
        ("not a number", lambda x, _: x * float("nan")),
        ("no tensor", lambda x, _: None),
    ],
)
def test_a_part_whose_output_proves_nothing_stays(
    name: str, function: Callable[[torch.Tensor, torch.Tensor], object]
) -> None:
    output, parts = run(Part(function))

    assert output is None
    assert parts.mixing is None


def test_rows_with_positions_and_several_outputs_pass() -> None:
    output, _ = run(Part(lambda x, p: (x * p[..., None], None, [x.mT, 1.5])))

    assert (output[0].shape, output[1], output[2][0].shape, output[2][1]) == (
        (1, T, HIDDEN),
        None,
        (1, HIDDEN, T),
        1.5,
    )


def test_the_same_kind_of_part_is_tried_once() -> None:
    tried = []

    class Counting(Mixture):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            tried.append(hidden_states.is_meta)
            return super().forward(hidden_states)

    run(Counting(), 3)

    assert tried == [True, False, False, False, False]


def test_what_enters_a_stand_in_is_used() -> None:
    with torch.device("meta"):
        backbone = nn.Sequential(Mixture())
        rows, positions = torch.empty(1, T, HIDDEN), torch.zeros(1, T)
    parts = DataParts(backbone, [], T)
    with without_data(), parts.stand_in(positions):
        backbone(rows)
        with TokenMixingProbe(T) as probe:
            backbone(rows)
        assert probe.found is None
        with TokenMixingProbe(T) as probe:
            backbone(rows.cumsum(1))

    assert probe.found == "cumsum"


def test_weights_of_any_size_take_no_memory() -> None:
    class Large(Mixture):
        def __init__(self) -> None:
            super().__init__()
            self.large = nn.Parameter(torch.empty(1 << 20, 1 << 20, device="meta"))

    output, _ = run(Large())

    assert output.shape == (1, T, HIDDEN)


def test_modules_keep_their_forward() -> None:
    with torch.device("meta"):
        backbone = Backbone(Mixture())
    with DataParts(backbone, [], T).stand_in(torch.zeros(1, T, device="meta")):
        assert "forward" in vars(backbone.parts[0])

    assert not any("forward" in vars(module) for module in backbone.modules())
