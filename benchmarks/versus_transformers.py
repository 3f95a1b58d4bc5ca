"""Compare with transformers' own ``generate`` in one run: ``python benchmarks/versus_transformers.py MODEL``.

Greedy, random token ids, no end of sequence, bf16 on both sides, prefix cache off. Prints output
tokens per second and the ratio for one stream (16 → 128) and for 64 at once (128 → 128).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from core_engine import LLM
from core_engine.bench.measure import measure
from core_engine.bench.workload import Workload

CASES = (("one stream", 1, 16, 128), ("64 at once", 64, 128, 128))


def main() -> None:
    """Measure both sides in turn and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args()

    from transformers import AutoModelForCausalLM

    peer = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    rows = []
    with LLM(args.model, dtype="bfloat16", enable_prefix_caching=False) as llm:
        vocab_size = llm.engine.started.model.vocab_size
        for name, num_prompts, input_len, output_len in CASES:
            work = Workload(num_prompts, input_len, output_len, vocab_size)
            short = Workload(num_prompts, input_len, 4, vocab_size, seed=1)
            measure(llm.engine, short.prompts, short.params)
            _generate(peer, short)
            ours, theirs = [], []
            for _ in range(args.rounds):
                run = measure(llm.engine, work.prompts, work.params)
                ours.append(num_prompts * output_len / run.seconds)
                theirs.append(num_prompts * output_len / _generate(peer, work))
            row = {
                "case": name,
                "core_engine": statistics.median(ours),
                "transformers": statistics.median(theirs),
                "ratio": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
            }
            rows.append(row)
            if not args.json:
                print(
                    f"{name}: {row['core_engine']:.1f} against {row['transformers']:.1f} tokens/s, "
                    f"{row['ratio']:.2f} times as many",
                    flush=True,
                )
    if args.json:
        print(json.dumps(rows, indent=2))


def _generate(peer: torch.nn.Module, work: Workload) -> float:
    ids = torch.tensor(work.prompts)
    started = time.perf_counter()
    with torch.inference_mode():
        output = peer.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=work.output_len,
            max_new_tokens=work.output_len,
            pad_token_id=0,
        )
    seconds = time.perf_counter() - started
    if output.shape[1] != work.input_len + work.output_len:
        raise SystemExit(f"transformers stopped after {output.shape[1] - work.input_len} tokens")
    return seconds


if __name__ == "__main__":
    main()
