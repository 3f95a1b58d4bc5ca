"""An edit of a text has the same tokens when its request drafts."""

from __future__ import annotations

import pytest
from real_model.conftest import StartEngine

from core_engine import LLM, SamplingParams

TEXT = (
    "The old lighthouse stood at the end of a narrow stone pier, and every evening Martin walked out to "
    "light the lamp. He carried a tin box with matches, a cloth for the glass, and a small notebook in which "
    "he wrote down the weather. The wind came mostly from the west, and in winter the waves washed over the "
    "pier, so that he had to wait for the right moment and run."
)
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=48),
    *[SamplingParams(temperature=0.6, top_p=0.95, seed=seed, max_tokens=48) for seed in (1, 2)],
]


def _edits(llm: LLM) -> list[list[int]]:
    question = f"Rewrite this text and improve the wording where you can.\n\n{TEXT}"
    prompt = llm.engine.tokenizer.hf.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=True, add_generation_prompt=True, return_dict=False
    )
    return [output.outputs[0].token_ids for output in llm.generate([prompt] * len(PARAMS), PARAMS)]


@pytest.fixture(scope="module")
def expected(smollm2: object) -> list[list[int]]:
    with LLM(
        str(smollm2), backend="cpu", dtype="float32", max_model_len=1024, kv_cache_bytes=256 << 20
    ) as llm:
        return _edits(llm)


def test_an_edit_has_the_same_tokens_with_drafts(start: StartEngine, expected: list[list[int]]) -> None:
    llm = start(num_draft_tokens=8, max_num_seqs=16, max_num_batched_tokens=64)
    assert _edits(llm) == expected
    stats = llm.engine.core.scheduler.stats()
    assert stats.num_accepted_tokens > 40
    assert stats.num_draft_tokens > stats.num_accepted_tokens
