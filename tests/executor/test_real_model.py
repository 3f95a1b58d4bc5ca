from __future__ import annotations

from pathlib import Path

import pytest

from core_engine import LLM, SamplingParams


@pytest.mark.real_model
def test_a_worker_process_gives_the_tokens_of_the_callers_process(smollm2: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=2, prompt_logprobs=1)
    results, logprobs = [], []
    for executor in ("in-process", "process"):
        with LLM(str(smollm2), executor=executor, dtype="float32", max_model_len=256) as llm:
            (result,) = llm.generate(["The capital of France is"], params)
        (output,) = result.outputs
        results.append((output.text, output.token_ids))
        logprobs.append(output.cumulative_logprob)
        assert result.prompt_logprobs is not None
    assert results[0] == results[1]
    assert "Paris" in results[0][0]
    # The two processes may divide the work among other numbers of threads.
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-3)
