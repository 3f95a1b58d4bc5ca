from __future__ import annotations

from core_engine_tpu.sharding import divide_weights, divided_share

from core_engine.plugin.runtime import TensorParallelPlan

STYLES = {
    "model.layers.*.self_attn.q_proj": "colwise",
    "model.layers.*.self_attn.o_proj": "rowwise",
    "model.layers.*.self_attn.q_norm": "replicated_with_grad_allreduce",
    "model.layers.*.mlp.experts.gate_up_proj": "packed_colwise",
    "model.layers.*.mlp.experts.down_proj": "rowwise",
    "model.layers.*.mlp.experts": "moe_tp_experts",
    "model.embed_tokens": "embedding_rowwise",
    "lm_head": "colwise_gather_output",
}
PLAN = TensorParallelPlan(STYLES)


def test_a_matrix_is_divided_by_its_outputs_or_inputs_and_a_bias_with_the_outputs() -> None:
    shapes = {
        "model.layers.0.self_attn.q_proj.weight": (64, 32),
        "model.layers.0.self_attn.q_proj.bias": (64,),
        "model.layers.11.self_attn.o_proj.weight": (32, 64),
        "model.layers.11.self_attn.o_proj.bias": (32,),
    }
    assert divide_weights(PLAN, shapes, 4) == {
        "model.layers.0.self_attn.q_proj.weight": 0,
        "model.layers.0.self_attn.q_proj.bias": 0,
        "model.layers.11.self_attn.o_proj.weight": 1,
    }


def test_experts_in_one_tensor_are_divided_within_each_expert() -> None:
    shapes = {
        "model.layers.3.mlp.experts.gate_up_proj": (8, 192, 64),
        "model.layers.3.mlp.experts.down_proj": (8, 64, 96),
    }
    assert list(divide_weights(PLAN, shapes, 4).values()) == [1, 2]


def test_embedding_and_head_are_divided_by_the_vocabulary_where_it_divides() -> None:
    even = {"model.embed_tokens.weight": (256, 64), "lm_head.weight": (256, 64)}
    assert divide_weights(PLAN, even, 4) == {"model.embed_tokens.weight": 0, "lm_head.weight": 0}
    odd = {"model.embed_tokens.weight": (255, 64), "lm_head.weight": (255, 64)}
    assert divide_weights(PLAN, odd, 4) == {}


def test_norms_styles_that_are_not_known_and_parameters_without_a_rule_stay_whole() -> None:
    shapes = {
        "model.layers.0.self_attn.q_norm.weight": (64,),
        "model.layers.0.mlp.experts.router": (8, 64),
        "model.norm.weight": (64,),
    }
    plan = TensorParallelPlan({**STYLES, "model.norm": "a_style_of_tomorrow"})
    assert divide_weights(plan, shapes, 4) == {}


def test_numbers_within_names_are_no_wildcards() -> None:
    plan = TensorParallelPlan({"model.layers.*.conv1": "colwise"})
    shapes = {"model.layers.2.conv1.weight": (8, 8), "model.layers.2.conv2.weight": (8, 8)}
    assert divide_weights(plan, shapes, 2) == {"model.layers.2.conv1.weight": 0}


def test_the_share_counts_elements() -> None:
    shapes = {"a.weight": (8, 9), "b.weight": (28,)}
    assert divided_share(shapes, {"a.weight": 0}) == 0.72
    assert divided_share({}, {}) == 0.0
