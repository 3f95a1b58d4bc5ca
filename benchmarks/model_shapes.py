"""Models by their shapes alone: a folder with a config and a tokenizer of bytes, for random weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from roofline import ModelSize

__all__ = ["SHAPES", "ModelShape", "write_model"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """A shape and what is measured with it."""

    size: ModelSize
    is_tied: bool
    #: Numbers of requests that decode together.
    batches: tuple[int, ...]
    #: Tokens of a prompt and of an answer where decoding is measured.
    input_len: int
    output_len: int
    #: Prompts and their length where prefill is measured.
    prefill: tuple[int, int]
    step_tokens: int


SHAPES = {
    "llama-3.1-8b": ModelShape(
        size=ModelSize(
            hidden_size=4096,
            intermediate_size=14336,
            num_layers=32,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            vocab_size=128256,
        ),
        is_tied=False,
        batches=(1, 8, 64),
        input_len=128,
        output_len=96,
        prefill=(8, 2048),
        step_tokens=8192,
    ),
    "smollm2-135m": ModelShape(
        size=ModelSize(
            hidden_size=576,
            intermediate_size=1536,
            num_layers=30,
            num_heads=9,
            num_kv_heads=3,
            head_dim=64,
            vocab_size=49152,
        ),
        is_tied=True,
        batches=(1, 8, 64),
        input_len=128,
        output_len=128,
        prefill=(16, 1024),
        step_tokens=8192,
    ),
    "tiny": ModelShape(
        size=ModelSize(
            hidden_size=64,
            intermediate_size=96,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            head_dim=16,
            vocab_size=512,
        ),
        is_tied=False,
        batches=(1, 2),
        input_len=8,
        output_len=6,
        prefill=(2, 16),
        step_tokens=256,
    ),
}


def write_model(shape: ModelShape, folder: Path) -> Path:
    """Write the config and the tokenizer of ``shape`` to ``folder`` and return it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    size = shape.size
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": size.hidden_size,
        "intermediate_size": size.intermediate_size,
        "num_hidden_layers": size.num_layers,
        "num_attention_heads": size.num_heads,
        "num_key_value_heads": size.num_kv_heads,
        "head_dim": size.head_dim,
        "vocab_size": size.vocab_size,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": shape.is_tied,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder
