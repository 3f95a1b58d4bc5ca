from __future__ import annotations

import pytest
import torch
from transformers.pytorch_utils import Conv1D

from core_engine.attention.context import ContextHolder, ForwardContext
from core_engine.lora.layers import LoRALinear, LoRATransform, lora_mask
from core_engine.testing.fake_context import fake_engine_config, fake_model_config

SLOTS, RANK = 2, 3


def attached(layer: LoRALinear, context: ContextHolder) -> LoRALinear:
    generator = torch.Generator().manual_seed(1)
    lora_a = torch.randn(SLOTS * RANK, layer.in_features, generator=generator)
    lora_b = torch.randn(SLOTS * RANK, layer.out_features, generator=generator)
    layer.attach(lora_a, lora_b, context)
    return layer


def mask(*slots: int) -> torch.Tensor:
    return lora_mask(torch.tensor(slots, dtype=torch.int32), num_slots=SLOTS, rank=RANK)


def linear(*, conv: bool = False) -> tuple[torch.nn.Module, LoRALinear]:
    base = Conv1D(5, 4) if conv else torch.nn.Linear(4, 5)
    torch.nn.init.normal_(base.bias)
    return base, LoRALinear(base, is_transposed=conv)


def test_the_mask_leaves_each_token_the_columns_of_its_slot() -> None:
    expected = [[False] * 3 + [True] * 3, [True] * 6, [True] * 3 + [False] * 3]
    assert mask(0, -1, 1).tolist() == expected


@pytest.mark.parametrize("conv", [False, True])
@torch.no_grad()
def test_each_token_gets_the_product_of_its_own_adapter(conv: bool) -> None:
    base, layer = linear(conv=conv)
    context = ContextHolder()
    attached(layer, context)
    x = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))
    with context.activate(ForwardContext(lora_mask=mask(1, -1, 0))):
        result = layer(x)
    plain = base(x)
    changes = [x[0] @ layer.lora_a[i : i + RANK].T @ layer.lora_b[i : i + RANK] for i in (0, RANK)]
    torch.testing.assert_close(result[0, 0], plain[0, 0] + changes[1][0])
    torch.testing.assert_close(result[0, 1], plain[0, 1])
    torch.testing.assert_close(result[0, 2], plain[0, 2] + changes[0][2])


@torch.no_grad()
def test_in_a_step_without_adapters_only_the_layer_itself_is_computed() -> None:
    base, layer = linear()
    x = torch.randn(1, 3, 4)
    assert torch.equal(attached(layer, ContextHolder())(x), base(x))


@torch.no_grad()
def test_what_overflows_in_one_slot_does_not_reach_other_tokens() -> None:
    _, layer = linear()
    context = ContextHolder()
    attached(layer, context).lora_a[RANK:] = 3e38
    x = torch.full((1, 1, 4), 100.0)
    for slot in (-1, 0):
        with context.activate(ForwardContext(lora_mask=mask(slot))):
            assert layer(x).isfinite().all()


def test_the_transform_keeps_parameters_and_their_names() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Sequential(torch.nn.Linear(5, 6, bias=False)))
    before = dict(model.named_parameters())
    assert LoRATransform(("1.0",)).apply(model, fake_engine_config(), fake_model_config()) == 1
    after = dict(model.named_parameters())
    assert [type(module) for module in (model[0], model[1][0])] == [torch.nn.Linear, LoRALinear]
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)
    assert model[1][0].bias is None


def test_matrices_are_no_part_of_a_checkpoint() -> None:
    _, layer = linear()
    assert set(attached(layer, ContextHolder()).state_dict()) == {"weight", "bias"}
