"""What speculation brings one stream, and what it costs at worst: ``python benchmarks/drafts.py MODEL``.

Two engines, one that drafts and one that does not, take steps in turn, so that whatever else the machine
does slows both alike. bf16, no prefix cache. Cases:

* edit: the model writes a text of about 300 tokens again, with changes of its own (sampled, one seed a
  round; in bf16 the two engines' texts may part, so seconds per output token are compared);
* repeat: it writes the text again as it is (greedy);
* never right: every look-up finds something, and no draft is ever accepted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from core_engine import LLM, SamplingParams
from core_engine.engine.prompts import TokenizedPrompt
from core_engine.scheduler.repeats import Repeats

TEXT = (
    "The old lighthouse stood at the end of a narrow stone pier, and every evening Martin walked out to "
    "light the lamp. He carried a tin box with matches, a cloth for the glass, and a small notebook in "
    "which he wrote down the weather. The wind came mostly from the west, and in winter the waves washed "
    "over the pier, so that he had to wait for the right moment and run. His father had done the same "
    "work for forty years, and his grandfather before him. In the notebook there were pages from those "
    "times, written in a thin and careful hand. Martin liked to read them while the lamp grew warm. On "
    "the third of March a storm had broken the window on the north side, and his grandfather had stood "
    "there all night with a lantern so that the ships could see the coast. Nobody had asked him to do it."
    " In the morning the fishermen brought him bread and a bottle of wine, and they repaired the window "
    "together. Martin often thought of that night when the sea was calm and the work was easy. He cleaned"
    " the glass, wrote two lines into the notebook, and walked back to the village, where the lights were"
    " already on and the dogs knew his steps. Sometimes a boy from the school came with him and asked how"
    " far the light could be seen. Martin told him that on a clear night a captain could find it from "
    "thirty miles away, and that no ship had been lost there since the lamp was lit."
)
EDIT = f"Rewrite this text and improve the wording where you can.\n\n{TEXT}"
REPEAT = f"Repeat this text.\n\n{TEXT}"
MAX_TOKENS = 320


@dataclass
class Run:
    """One answer: its tokens, the seconds of its steps after the first, and its drafts."""

    num_tokens: int
    seconds: float
    num_drafts: int
    num_accepted: int

    @property
    def seconds_per_token(self) -> float:
        """The prefill and its token do not count."""
        return self.seconds / (self.num_tokens - 1)


class Stream:
    """One request in one engine, stepped from outside."""

    def __init__(self, llm: LLM, prompt: list[int], params: SamplingParams) -> None:
        self._engine = llm.engine
        self._before = self._stats()
        self._engine.add([("stream", TokenizedPrompt(None, prompt), params)])
        self._engine.step()
        self.run: Run | None = None
        self._seconds = 0.0

    def step(self) -> None:
        """Take a step and note its time, and the result after the last."""
        started = time.perf_counter()
        self._engine.step()
        self._seconds += time.perf_counter() - started
        for output in self._engine.take_finished(["stream"]):
            num_drafts, num_accepted = (
                now - then for now, then in zip(self._stats(), self._before, strict=True)
            )
            num_tokens = len(output.outputs[0].token_ids)
            self.run = Run(num_tokens, self._seconds, num_drafts, num_accepted)

    def _stats(self) -> tuple[int, int]:
        stats = self._engine.core.scheduler.stats()
        return stats.num_draft_tokens, stats.num_accepted_tokens


def compare(plain: LLM, drafting: LLM, prompt: list[int], params: SamplingParams) -> tuple[Run, Run]:
    """Answer ``prompt`` in both engines, step by step in turn."""
    streams = [Stream(llm, prompt, params) for llm in (plain, drafting)]
    while pending := [stream for stream in streams if stream.run is None]:
        for stream in pending:
            stream.step()
    without, drafted = (stream.run for stream in streams)
    assert without is not None
    assert drafted is not None
    return without, drafted


@contextmanager
def never_right() -> Iterator[None]:
    """Let every look-up propose the start of the prompt, which no answer repeats in its middle."""
    find = Repeats.find

    def find_wrong(self: Repeats) -> int:
        find(self)
        return 0

    with patch.object(Repeats, "find", find_wrong):
        yield


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-draft-tokens", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args()

    settings: dict[str, Any] = {
        "dtype": "bfloat16",
        "enable_prefix_caching": False,
        "max_model_len": 2048,
        "kv_cache_bytes": 256 << 20,
    }
    seeds = range(args.rounds)
    sampled = [SamplingParams(temperature=0.5, seed=seed, max_tokens=MAX_TOKENS) for seed in seeds]
    greedy = [SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)] * args.rounds
    rows = []
    with (
        LLM(args.model, **settings) as plain,
        LLM(args.model, num_draft_tokens=args.num_draft_tokens, **settings) as drafting,
    ):
        for name, question, rounds, context in (
            ("edit", EDIT, sampled, nullcontext),
            ("repeat", REPEAT, [replace(params, ignore_eos=False) for params in greedy], nullcontext),
            ("never right", REPEAT, greedy, never_right),
        ):
            messages = [{"role": "user", "content": question}]
            prompt = plain.engine.tokenizer.hf.apply_chat_template(
                messages, tokenize=True, add_generation_prompt=True, return_dict=False
            )
            with context():
                compare(plain, drafting, prompt, SamplingParams(temperature=0.0, max_tokens=8))
                runs = [compare(plain, drafting, prompt, params) for params in rounds]
            num_drafts = sum(drafted.num_drafts for _, drafted in runs)
            row = {
                "case": name,
                "output_tokens": [drafted.num_tokens for _, drafted in runs],
                "ms_per_token": statistics.median(r.seconds_per_token for r, _ in runs) * 1e3,
                "ms_per_token_with_drafts": statistics.median(r.seconds_per_token for _, r in runs) * 1e3,
                "speedup": statistics.median(a.seconds_per_token / b.seconds_per_token for a, b in runs),
                "drafts": num_drafts,
                "acceptance": sum(drafted.num_accepted for _, drafted in runs) / max(num_drafts, 1),
            }
            rows.append(row)
            if not args.json:
                print(
                    f"{name}: {row['speedup']:.2f} times as fast, {row['ms_per_token']:.1f} → "
                    f"{row['ms_per_token_with_drafts']:.1f} ms a token, {row['acceptance']:.0%} of "
                    f"{num_drafts} drafts accepted",
                    flush=True,
                )
    if args.json:
        json.dump(rows, sys.stdout, indent=2)
        print()


if __name__ == "__main__":
    main()
