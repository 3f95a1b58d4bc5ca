"""What the compiler makes of the sampler's kernels."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import re, triton
from triton.backends.compiler import GPUTarget
from core_engine_cuda.kernels.token_variants import draw_variant

variant = draw_variant("bfloat16", 16, filters=True)
kernel = triton.compile(variant.source(), target=GPUTarget("cuda", 90, 32), options=variant.options)
for pattern in (r"fma[.]rn[.]f32", r"ld[.]global\\S*[.]v"):
    print(len(re.findall(pattern, kernel.asm["ptx"])))
"""


def test_no_product_and_sum_of_the_noise_become_one_and_loads_are_wide() -> None:
    # A process of its own: here Triton interprets.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    num_fused, num_wide_loads = map(int, result.stdout.split())
    assert num_fused == 0
    assert num_wide_loads > 0
