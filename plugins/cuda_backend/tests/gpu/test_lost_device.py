"""A fault on the GPU is told, and stays; in a process of its own, as no other test could use its GPU."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import torch
from core_engine.plugin import DeviceLost
from core_engine_cuda.runtime import CudaRuntime

runtime = CudaRuntime()
rows = torch.zeros(4, device=runtime.device)
for doing in ("a step", "the next step"):
    try:
        with runtime.working(doing):
            rows[torch.tensor([9], device=runtime.device)].sum()
            runtime.synchronize()
    except DeviceLost as lost:
        print(lost)
"""


def test_a_fault_is_a_loss_that_stays() -> None:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=variables)
    lines = [line for line in result.stdout.splitlines() if line.startswith("the GPU failed during a step")]
    assert len(lines) == 2, result.stdout + result.stderr
    assert "device-side assert" in lines[0]
