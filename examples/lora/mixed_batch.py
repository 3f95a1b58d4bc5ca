"""Answers questions with and without a LoRA adapter, all in one batch.

python examples/lora/mixed_batch.py MODEL ADAPTER
"""

from __future__ import annotations

import argparse

from core_engine import LLM, LoRARequest, SamplingParams

QUESTIONS = ["What is the capital of France?", "Who painted the Mona Lisa?"]


def answer(model: str, adapter: str, backend: str | None = None) -> list[tuple[str, str, str]]:
    """Return (question, plain answer, adapted answer) for each question."""
    lora = LoRARequest("greeting", adapter)
    params = SamplingParams(temperature=0.0, max_tokens=32)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    with LLM(model, backend=backend, max_loras=1, max_model_len=512) as llm:
        outputs = llm.chat([*chats, *chats], params, lora=[None] * len(chats) + [lora] * len(chats))
    texts = [output.outputs[0].text for output in outputs]
    return list(zip(QUESTIONS, texts[: len(chats)], texts[len(chats) :], strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("adapter")
    arguments = parser.parse_args()
    for question, plain, adapted in answer(arguments.model, arguments.adapter):
        print(f"{question}\n  plain:   {plain}\n  adapted: {adapted}\n")
