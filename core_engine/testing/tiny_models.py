"""Tiny random checkpoints of any model type that transformers knows, made on the fly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

__all__ = ["make_default_config", "make_tiny_config", "randomize", "save_tiny_model"]

VOCAB_SIZE = 199
#: Smaller than the prompts that tests use, so that windows matter.
SLIDING_WINDOW = 7
#: A model with more is not tiny: some size of its config was not shrunk.
MOST_PARAMETERS = 60_000_000

#: What a size is set to, by the attribute's name; only attributes that a config has are touched.
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "sliding_window": SLIDING_WINDOW,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
    "shared_intermediate_size": 48,
    "expert_ffn_hidden_size": 48,
    "ffn_hidden_size": 96,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "qk_head_dim": 24,
    "v_head_dim": 12,
    "v_head_dim_": 12,
    "sliding_window_pattern": 2,
    "global_attn_every_n_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "num_kv_shared_layers": 2,
    "laurel_rank": 8,
    "embedding_size": 64,
    "encoder_layers": 2,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "word_embed_proj_dim": 64,
    "dim_model": 64,
    "dim_ff": 96,
    "dim_head": 16,
    "original_max_position_embeddings": 64,
}
_INDEXER = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
}
_SMALL_TOWER = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
#: What single types need besides; ``...`` keeps the class's default.
_OVERRIDES: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 8},
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10_000.0}
            for kind in ("full_attention", "sliding_attention")
        }
    },
    "dbrx": {
        "attn_config": {"rope_theta": 10_000.0, "kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dory": {"layer_types": ...},
    "dots1": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "gemma4_assistant": {"num_kv_shared_layers": 4},
    "gemma3n_text": {"activation_sparsity_pattern": [0.8, 0.8, 0.0, 0.0]},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": SLIDING_WINDOW},
    "gptj": {"rotary_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "longcat_flash": {"num_layers": 2, "zero_expert_num": 2},
    "ministral": {"head_dim": 16},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "phi4_multimodal": {
        "vision_config": {
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        "audio_config": {
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_blocks": 1,
            "num_attention_heads": 2,
        },
    },
    "qwen4_exp": _INDEXER,
    "qwen4_exp_text": _INDEXER,
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [16, 48]},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
    "mamba2": {"num_heads": 8, "head_dim": 16},
}
#: Parts whose defaults the type itself refuses.
_PARTS: dict[str, dict[str, Any]] = {
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
        }
    }
}
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id")


def make_tiny_config(model_type: str, **overrides: Any) -> Any:
    """Return a config of ``model_type`` with every size shrunk that its default config names.

    ``overrides`` win over the shrunk values; of a multimodal type they go to its text part.
    """
    default = make_default_config(model_type)
    overrides = {**_OVERRIDES.get(model_type, {}), **overrides}
    text = default.get_text_config()
    if text is default:
        return _shrink(default, overrides)
    parts = {name: getattr(default, name, None) for name in type(default).sub_configs}
    tiny = {
        name: _shrink(part, overrides if part is text else {})
        for name, part in parts.items()
        if part is not None
    }
    return type(default)(**tiny)


def make_default_config(model_type: str) -> Any:
    """Return the config that ``model_type`` has when nothing is said."""
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type](**_PARTS.get(model_type, {}))


def _shrink(default: Any, overrides: dict[str, Any]) -> Any:
    stated = default.to_dict()
    mapped = getattr(default, "attribute_map", {})
    values: dict[str, Any] = {}
    for name, value in _SIZES.items():
        present = stated.get(mapped.get(name, name))
        if isinstance(present, int) and not isinstance(present, bool) and present > 0:
            values[mapped.get(name, name)] = value
    if "kv_lora_rank" in values:  # latent attention: every head has a key, and rotary spans a part of it
        values["num_key_value_heads"] = _SIZES["num_attention_heads"]
        values["head_dim"] = _SIZES["qk_rope_head_dim"]
    values.update(
        {name: 0 if name == "pad_token_id" else 1 for name in _TOKENS if stated.get(name) is not None}
    )
    kinds = sorted(set(stated.get("layer_types") or ()))
    if kinds:
        values["layer_types"] = [kinds[(i + 1) % len(kinds)] for i in range(_SIZES["num_hidden_layers"])]
    if "is_decoder" in stated:  # an encoder's config serves as causal LM only with this
        values["is_decoder"] = True
    if stated.get("use_sliding_window") is not None:
        values["use_sliding_window"] = True
    chosen = {**values, **overrides}
    return type(default)(**{name: value for name, value in chosen.items() if value is not ...})


@torch.no_grad()
def randomize(model: torch.nn.Module, seed: int = 0) -> None:
    """Fill the parameters so that logits spread and every part has a say in them.

    Matrices get a standard deviation of 1 / sqrt(fan in), vectors keep their value plus noise.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() >= 2:
            parameter.copy_(noise * (1.2 / parameter.shape[-1] ** 0.5))
        else:
            parameter.nan_to_num_(0.0).clamp_(-4, 4).add_(noise * 0.1)


def save_tiny_model(config: Any, directory: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    """Build the causal LM of ``config`` with random weights and save it as safetensors."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config, dtype=dtype).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"a tiny {config.model_type} would have {size} parameters")
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    randomize(model, seed)
    model.tie_weights()
    model.save_pretrained(directory)
    # Of a multimodal type only the text part may have been built; the checkpoint names the whole.
    config.save_pretrained(directory)
    return directory
