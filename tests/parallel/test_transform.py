from __future__ import annotations

from typing import Any

import pytest
import torch

from core_engine.config import EngineConfig, ModelConfig
from core_engine.errors import ConfigError, UnsupportedFeature
from core_engine.models.attention_hook import attach_attention
from core_engine.models.build import build_meta_model
from core_engine.models.causal_lm import text_causal_lm
from core_engine.parallel.lone import LoneCommunicator
from core_engine.parallel.rank_layers import find_rank_layers
from core_engine.parallel.share import divided_share, share_of
from core_engine.parallel.transform import TensorParallel
from core_engine.testing.fake_context import fake_engine_config, fake_model_config
from core_engine.testing.tiny_models import make_tiny_config

CONFIG = fake_engine_config(tensor_parallel_size=2)


class CountingCommunicator(LoneCommunicator):
    """Counts what is exchanged."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.calls: list[str] = []

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        self.calls.append("all_reduce")
        return super().all_reduce(tensor)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        self.calls.append("all_gather")
        return super().all_gather(tensor)


def facts_of(model: Any) -> ModelConfig:
    return fake_model_config(architecture=type(model).__name__)


def meta_model(model_type: str, **sizes: Any) -> Any:
    return build_meta_model(text_causal_lm(make_tiny_config(model_type, **sizes)), dtype=torch.bfloat16)


def divided_table(model: Any) -> Any:
    """Let the plan divide the table of embeddings, which older ones leave whole."""
    model._tp_plan = {"model.embed_tokens": "embedding_rowwise", **model.tp_plan}
    return model


def divide(model: Any, config: EngineConfig = CONFIG, rank: int = 0) -> CountingCommunicator:
    communicator = CountingCommunicator(rank, config.tensor_parallel_size)
    TensorParallel(communicator).apply(model, config, facts_of(model))
    return communicator


def test_the_names_stay_and_a_rank_has_its_share_of_each_shape() -> None:
    whole, model = meta_model("llama"), divided_table(meta_model("llama"))
    divide(model)
    names = [name for name, _ in whole.named_parameters()]
    assert [name for name, _ in model.named_parameters()] == names
    parameters = dict(model.named_parameters())
    assert {
        name: tuple(parameters[name].shape) for name in names if ".3." in name or "layers" not in name
    } == {
        "model.embed_tokens.weight": (100, 64),
        "model.layers.3.self_attn.q_proj.weight": (32, 64),
        "model.layers.3.self_attn.k_proj.weight": (16, 64),
        "model.layers.3.self_attn.v_proj.weight": (16, 64),
        "model.layers.3.self_attn.o_proj.weight": (64, 32),
        "model.layers.3.mlp.gate_proj.weight": (48, 64),
        "model.layers.3.mlp.up_proj.weight": (48, 64),
        "model.layers.3.mlp.down_proj.weight": (64, 48),
        "model.layers.3.input_layernorm.weight": (64,),
        "model.layers.3.post_attention_layernorm.weight": (64,),
        "model.norm.weight": (64,),
        "lm_head.weight": (100, 64),
    }
    shares = {name: share_of(parameter) for name, parameter in parameters.items()}
    assert {share.whole for share in shares.values() if share} <= {tuple(p.shape) for p in whole.parameters()}
    assert divided_share(model) > 0.98


def test_a_step_sums_once_a_row_parallel_layer_and_joins_the_logits_once() -> None:
    model = divided_table(meta_model("llama"))
    communicator = divide(model)
    for layer in model.model.layers:
        attach_attention(layer.self_attn, lambda query, key, value, sinks: query)
    ids = torch.zeros(1, 3, dtype=torch.int64, device="meta")
    model(input_ids=ids, use_cache=False)
    # The embedding, and in each of 4 layers what follows attention and what follows the activation.
    assert communicator.calls == ["all_reduce"] * (1 + 2 * 4) + ["all_gather"]


def test_tied_weights_stay_one_tensor_and_are_divided_by_the_vocabulary() -> None:
    model = meta_model("gemma2")
    divide(model)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert model.lm_head.weight.shape == (100, 64)


def test_a_table_that_is_tied_to_a_divided_head_is_divided_where_the_plan_does_not_say_so() -> None:
    model = meta_model("gemma2")
    model._tp_plan = {"lm_head": "colwise_gather_output"}
    divide(model)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert model.lm_head.weight.shape == (100, 64)


def test_a_style_that_is_not_known_is_refused_with_its_name_and_the_modules() -> None:
    model = meta_model("llama")
    model._tp_plan = {**model.tp_plan, "model.layers.*.mlp": "a_style_of_tomorrow"}
    expected = r"size 2: model\.layers\.0\.mlp of LlamaForCausalLM has the style 'a_style_of_tomorrow'"
    with pytest.raises(UnsupportedFeature, match=expected):
        divide(model)


def test_a_linear_layer_of_a_class_of_its_own_is_refused() -> None:
    class OwnLinear(torch.nn.Linear):
        pass

    model = meta_model("llama")
    model.model.layers[1].mlp.up_proj = OwnLinear(64, 96, device="meta")
    with pytest.raises(UnsupportedFeature, match=r"layers\.1\.mlp\.up_proj .* 'colwise' and is a OwnLinear"):
        divide(model)


def test_features_that_do_not_divide_are_refused_with_the_numbers() -> None:
    config = fake_engine_config(tensor_parallel_size=2)
    with pytest.raises(ConfigError, match=r"2 does not divide the 97 output features of .*gate_proj"):
        divide(meta_model("llama", intermediate_size=97), config)
    with pytest.raises(ConfigError, match=r"2 does not divide the .* dimension 1 of .*experts.gate_up_proj"):
        divide(meta_model("mixtral", intermediate_size=97), config)


def test_adapters_are_refused() -> None:
    config = fake_engine_config(tensor_parallel_size=2, max_loras=1)
    with pytest.raises(UnsupportedFeature, match="max_loras 1 with tensor_parallel_size 2: "):
        divide(meta_model("llama"), config)


def find(model: Any, size: int = 2) -> tuple[tuple[int, int], ...]:
    config = fake_engine_config(tensor_parallel_size=size)
    findings = find_rank_layers(model, config, facts_of(model), rank=size - 1, size=size)
    return tuple((layer.num_heads, layer.num_kv_heads) for layer in findings.layers)


def test_a_ranks_layers_have_its_heads() -> None:
    assert find(meta_model("llama")) == ((2, 1),) * 4


def test_heads_that_do_not_divide_are_refused_whatever_the_config_said() -> None:
    with pytest.raises(ConfigError, match=r"3 does not divide the 4 query heads and 2 K/V heads of Llama"):
        find(meta_model("llama"), size=3)


def test_a_plan_that_divides_queries_only_is_refused() -> None:
    model = meta_model("llama")
    model._tp_plan = {name: style for name, style in model.tp_plan.items() if "k_proj" not in name}
    model._tp_plan = {name: style for name, style in model._tp_plan.items() if "v_proj" not in name}
    expected = "each rank has 2 query heads and 2 K/V heads, of 4 and 2; run it on one device"
    with pytest.raises(UnsupportedFeature, match=expected):
        find(model)


def test_a_plan_that_does_not_fit_the_forward_pass_is_refused() -> None:
    model = meta_model("llama")
    model._tp_plan = {"model.layers.*.mlp.gate_proj": "colwise"}
    with pytest.raises(
        UnsupportedFeature, match=r"cannot be divided as transformers' .* plan says: .*not run"
    ):
        find(model)


def test_a_statistic_of_features_that_ranks_divide_is_refused() -> None:
    # Its activations keep what lies far above their mean: of all features, not of a rank's.
    with pytest.raises(UnsupportedFeature, match=r"takes the (mean|std) of features that ranks divide"):
        find(meta_model("gemma3n_text"))
