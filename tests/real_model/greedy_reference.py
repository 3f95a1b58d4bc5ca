"""What transformers' own ``generate`` answers, and how sure it was of each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

#: A different token is allowed only where the reference's two best logits lie this close.
MARGIN = 1e-4


@dataclass(frozen=True)
class Answer:
    token_ids: list[int]
    #: For each token, how far the best logit lay above the second.
    margins: list[float]


def reference_answers(model: Path, prompts: Sequence[str], num_tokens: int) -> list[Answer]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    answers = []
    for prompt in prompts:
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        with torch.inference_mode():
            output = net.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
            )
        best = torch.stack([logits[0].topk(2).values for logits in output.logits])
        answers.append(
            Answer(output.sequences[0, ids.shape[1] :].tolist(), (best[:, 0] - best[:, 1]).tolist())
        )
    return answers


def difference(answer: Answer, token_ids: Sequence[int]) -> str | None:
    """Return what differs, or None; a close call ends the comparison because the texts part there."""
    for place, (expected, margin) in enumerate(zip(answer.token_ids, answer.margins, strict=True)):
        if place >= len(token_ids):
            return f"only {len(token_ids)} of {len(answer.token_ids)} tokens"
        if token_ids[place] != expected:
            if margin < MARGIN:
                return None
            return f"token {place} is {token_ids[place]}, expected {expected} (margin {margin:.2e})"
    if len(token_ids) > len(answer.token_ids):
        return f"{len(token_ids)} tokens, expected {len(answer.token_ids)}"
    return None
