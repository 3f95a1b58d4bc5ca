"""Launches the kernels as an engine does, up to where they would be compiled, and prints what is asked for.

Triton's own launch works out types and alignment from the arguments; a driver that knows no more than the
architecture stands in for the GPU's. One JSON object a line: the kernel, and the variant that has just this
code, null if none has.
"""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import torch
import triton
from attention_run import backend_for, make_case, write_past
from core_engine_cuda.kernels.variants import all_variants
from core_engine_cuda.sampler import TritonSampler
from sampling_case import FILTERED, GREEDY, PLAIN, sampler_inputs
from triton.backends.compiler import GPUTarget

from core_engine.backends.cpu.device_io import CpuIO

CASES: list[dict[str, Any]] = [
    {"head_dim": 64, "dtype": "bfloat16"},
    {"head_dim": 96, "dtype": "float16", "sinks": True},
    {"head_dim": 128, "dtype": "bfloat16", "soft_cap": 30.0, "num_heads": 12, "sliding_window": 1},
    {"head_dim": 256, "dtype": "float32", "num_kv_heads": 1},
    {"head_dim": 24, "dtype": "bfloat16", "num_heads": 19, "num_kv_heads": 1, "block_size": 128},
]
LOGITS = [(1, 256), (16, 4096), (3, 1001)]
STEPS = [[(700, 1)], [(31, 1), (15, 1)], [(0, 64)], [(300, 1), (0, 16), (32, 100)]]


class NoGpu:
    """The part of Triton's driver that a launch asks before it compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def known() -> dict[str, str]:
    """Return code → name of every variant."""
    return {
        code(
            v.kernel.__name__, v.source().signature, v.source().constants, v.source().attrs, v.options
        ): v.name
        for v in all_variants(9)
    }


def code(kernel: str, signature: Any, constants: Any, attributes: Any, options: Any) -> str:
    """Return what decides the machine code, as text."""
    aligned = sorted(place for place, found in attributes.items() if found)
    chosen = [options[name] for name in ("num_warps", "num_stages", "enable_fp_fusion")]
    return repr((kernel, list(signature.items()), sorted(constants.items()), aligned, chosen))


def main() -> None:
    variants = known()

    def note(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        name = fn.name.rsplit(".", 1)[-1]
        asked = code(name, compile["signature"], compile["constants"], compile["configs"][0], compile)
        print(json.dumps({"kernel": name, "variant": variants.get(asked), "asked": asked}))
        return True  # Triton goes no further.

    triton.runtime.driver.set_active(NoGpu())
    triton.knobs.runtime.jit_cache_hook = note
    for settings in CASES:
        for requests in STEPS:
            case = make_case(requests, **settings)
            backend = backend_for(case, num_sms=132)
            cache = case.allocate(backend, CpuIO())
            write_past(case, cache)
            case.run_step(backend, CpuIO(), cache)
    for (num_rows, vocab_size), dtype in product(LOGITS, (torch.float32, torch.bfloat16, torch.float16)):
        logits = torch.zeros(num_rows, vocab_size, dtype=dtype)
        # A step's inputs are views of one buffer and may begin anywhere.
        inputs = {
            name: torch.cat([tensor[:1], tensor])[1:]
            for name, tensor in sampler_inputs(num_rows, vocab_size).items()
        }
        for kind in (GREEDY, PLAIN, FILTERED):
            TritonSampler().sample(logits, inputs, kind)


if __name__ == "__main__":
    main()
