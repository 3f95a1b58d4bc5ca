"""A tiny random model with a byte-level tokenizer and a chat template: a whole folder in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_chat_model(folder: Path, model_type: str = "llama", **sizes: Any) -> Path:
    """Save the model; ids 0 to 255 are bytes, 256 and 257 the markers of a message, 258 ends a text.

    ``sizes`` are fields of its config.
    """
    # Here, not at the top: tests without models must not pay for torch.
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from core_engine.testing.tiny_models import make_tiny_config, save_tiny_model

    special = ["<|im_start|>", "<|im_end|>", "<|end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: index for index, text in enumerate([*alphabet, *special])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    wrapped.chat_template = TEMPLATE
    tokens = {"vocab_size": len(vocabulary) + 5, "eos_token_id": 258, "bos_token_id": None}
    config = make_tiny_config(model_type, **{**tokens, **sizes})
    save_tiny_model(config, folder)
    wrapped.save_pretrained(folder)
    return folder
