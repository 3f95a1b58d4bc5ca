from __future__ import annotations

from types import SimpleNamespace

import pytest

from core_engine.errors import UnsupportedFeature
from core_engine.parallel.plan import Division, TensorParallelPlan
from core_engine.testing.fake_context import fake_engine_config, fake_model_config

PLAN = TensorParallelPlan(
    {
        "layers.*.q_proj": "colwise",
        "layers.*.o_proj": "rowwise",
        "layers.*.experts": "moe_tp_experts",
        "layers.*.experts.gate_up_proj": "packed_colwise",
        "layers.*.experts.down_proj": "rowwise",
        "layers.*.sinks": "colwise",
        "layers.*.conv1": "colwise",
        "embed_tokens": "embedding_rowwise",
        "norm": "a_style_of_tomorrow",
    }
)


def test_numbers_in_names_are_wildcards_and_numbers_within_words_are_none() -> None:
    assert PLAN.style("layers.11.q_proj") == "colwise"
    assert PLAN.style("layers.2.conv1") == "colwise"
    assert PLAN.style("layers.2.conv2") is None


@pytest.mark.parametrize(
    ("name", "num_dims", "division"),
    [
        ("layers.0.q_proj.weight", 2, Division(0)),
        ("layers.0.q_proj.bias", 1, Division(0)),
        ("layers.0.o_proj.weight", 2, Division(1)),
        ("layers.0.o_proj.bias", 1, None),
        ("layers.0.experts.gate_up_proj", 3, Division(1, 2)),
        ("layers.0.experts.down_proj", 3, Division(2)),
        ("layers.0.experts.router", 2, None),
        ("layers.0.sinks", 1, Division(0)),
        ("embed_tokens.weight", 2, Division(0)),
        ("norm.weight", 1, None),
    ],
)
def test_a_parameter_is_divided_by_its_own_style_or_its_modules(
    name: str, num_dims: int, division: Division | None
) -> None:
    assert PLAN.division(name, num_dims) == division


def test_a_model_without_a_plan_is_refused_with_the_reason() -> None:
    config = fake_engine_config(tensor_parallel_size=2)
    facts = fake_model_config(architecture="SomeForCausalLM")
    with pytest.raises(
        UnsupportedFeature, match=r"size 2: transformers has no .* plan for SomeForCausalLM, so"
    ):
        TensorParallelPlan.of_model(SimpleNamespace(tp_plan={}), config, facts)
