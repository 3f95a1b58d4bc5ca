"""Measure prefill and decoding of a model's shape with random weights; one line of JSON for each result.

python benchmarks/model_speed.py llama-3.1-8b --backend cuda --limits '{"gb_per_s": 4800}'
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from model_shapes import SHAPES, ModelShape, write_model
from roofline import Limits

from core_engine import LLM, SamplingParams
from core_engine.bench.measure import measure
from core_engine.bench.workload import Workload

#: A request as chat services make it, to see what its sampler costs beside the greedy one.
_SAMPLED = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "seed": 1}


def main() -> int:
    """Print one line for the start and one for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--limits", type=json.loads, default={}, help="tflop_per_s and gb_per_s, as JSON")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        with LLM(
            str(write_model(shape, Path(folder))),
            backend=args.backend,
            load_format="dummy",
            dtype="bfloat16",
            max_num_seqs=max(shape.batches),
            max_model_len=_longest(shape),
            max_num_batched_tokens=shape.step_tokens,
            enable_prefix_caching=False,
        ) as llm:
            _tell(measurement="start", seconds=time.perf_counter() - started)
            speed = _Speed(llm, shape, Limits(**args.limits))
            for batch in shape.batches:
                speed.decode(batch)
            speed.prefill()
            speed.decode(max(shape.batches), **_SAMPLED)
    return 0


def _longest(shape: ModelShape) -> int:
    return max(shape.prefill[1] + 1, shape.input_len + shape.output_len)


def _tell(**result: Any) -> None:
    print(json.dumps(result), flush=True)


class _Speed:
    """The measurements of one engine; each is made twice, and the second counts."""

    def __init__(self, llm: LLM, shape: ModelShape, limits: Limits) -> None:
        self._engine, self._shape, self._limits = llm.engine, shape, limits

    def decode(self, batch: int, **options: Any) -> None:
        """Tell the rate of ``batch`` requests that decode together: from the median time of a step."""
        shape = self._shape
        work = Workload(batch, shape.input_len, shape.output_len, shape.size.vocab_size)
        options = options or {"temperature": 0.0}
        params = SamplingParams(max_tokens=shape.output_len, ignore_eos=True, **options)
        measure(self._engine, work.prompts, params)
        run = measure(self._engine, work.prompts, params)
        # Prefill of late requests is in some gaps of early ones, and in fewer than half.
        step_s = median(gap for request in run.requests for gap in request.inter_token_s)
        context_len = shape.input_len + shape.output_len / 2
        num_bytes = shape.size.decode_bytes(batch, context_len)
        num_flops = shape.size.decode_flops(batch, context_len)
        _tell(
            measurement="decode",
            sampling=options,
            batch=batch,
            tokens_per_s=batch / step_s,
            step_ms=step_s * 1e3,
            bytes_per_step=num_bytes,
            memory_share=self._limits.memory_share(num_bytes, step_s),
            compute_share=self._limits.compute_share(num_flops, step_s),
        )

    def prefill(self) -> None:
        """Tell the rate of prompts that are answered by one token."""
        num_prompts, prompt_len = self._shape.prefill
        work = Workload(num_prompts, prompt_len, 1, self._shape.size.vocab_size)
        measure(self._engine, work.prompts, work.params)
        seconds = measure(self._engine, work.prompts, work.params).seconds
        _tell(
            measurement="prefill",
            prompts=num_prompts,
            prompt_len=prompt_len,
            tokens_per_s=num_prompts * prompt_len / seconds,
            compute_share=self._limits.compute_share(
                self._shape.size.prefill_flops(num_prompts, prompt_len), seconds
            ),
        )


if __name__ == "__main__":
    sys.exit(main())
