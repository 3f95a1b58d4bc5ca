"""The named families through the whole engine: paged cache, chunks and batches change no greedy token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core_engine import LLM, SamplingParams
from core_engine.models._quiet import quiet_transformers
from core_engine.testing.model_check import random_prompts
from core_engine.testing.oracle import Oracle

from .test_families import FAMILIES, PHI3

NUM_TOKENS = 32
#: A window smaller than the prompts, a shared cache, sinks, longrope, plain attention, and experts
#: whose code asks for data: in a loop over those that were hit, some without weights, and in attention.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **FAMILIES,
    "phi3 longrope, long factors": ("phi3", PHI3),
    "gemma3n shared KV": ("gemma3n_text", {}),
    "dbrx": ("dbrx", {}),
    "longcat_flash": ("longcat_flash", {}),
    "jetmoe": ("jetmoe", {}),
    "phimoe": ("phimoe", {}),
}
SHAPES = {"whole prompts": 256, "chunks of 16 tokens": 16}


def save_tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(199)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(directory)


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_equal_transformers(case: str, make_tiny: Any) -> None:
    model_type, overrides = CASES[case]
    directory = make_tiny(model_type, **overrides)
    save_tokenizer(directory)
    # The regime of the long factors begins at 65 tokens.
    prompts = random_prompts((70, 80) if overrides is PHI3 else (21, 40, 3))
    with quiet_transformers():
        oracle = Oracle(directory)
    expected = [oracle.greedy(prompt, NUM_TOKENS)[0] for prompt in prompts]
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)

    for shape, budget in SHAPES.items():
        options: dict[str, Any] = {"max_num_batched_tokens": budget, "dtype": "float32", "max_model_len": 128}
        with LLM(str(directory), backend="cpu", kv_cache_bytes=8 << 20, **options) as llm:
            alone = [list(llm.generate(prompt, params)[0].outputs[0].token_ids) for prompt in prompts]
            together = [list(out.outputs[0].token_ids) for out in llm.generate(prompts, params)]

        assert alone == expected, f"alone, {shape}"
        assert together == expected, f"together, {shape}"
