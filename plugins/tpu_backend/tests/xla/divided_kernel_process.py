"""The attention kernel in a graph of four devices, traced as an engine traces it; a process of its own.

As a program: writes the graph as JSON to stdout, with what `core_engine_tpu.runtime_tracing.LoweredGraph`
tells of it.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from core_engine_tpu.runtime_tracing import LoweredGraph

__all__ = ["LAYER", "NUM_DEVICES", "NUM_LAYERS", "trace_in_process"]

NUM_DEVICES, NUM_LAYERS = 4, 2
#: On one device 3 query heads and 1 K/V head, padded as the kernel needs it.
LAYER: dict[str, Any] = {
    "requests": [(30, 1), (0, 9)],
    "num_heads": 12,
    "num_kv_heads": 4,
    "head_dim": 64,
    "dtype": "bfloat16",
    "spare_blocks": 2000,
}


def trace_in_process() -> LoweredGraph:
    """Trace the graph in a process with four virtual devices."""
    paths = [str(Path(__file__).parent), *(path for path in sys.path if path)]
    environment = {**os.environ, "CPU_NUM_DEVICES": str(NUM_DEVICES), "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    traced = json.loads(done.stdout.splitlines()[-1])
    return LoweredGraph(**{**traced, "module": base64.b64decode(traced["module"])})


def _trace() -> dict[str, Any]:
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm
    from attention_graph import AttentionGraph, TpuStandIn
    from core_engine_tpu.kv_layout import HEADS_DIM

    from core_engine.testing.attention_case import AttentionCase

    runtime = TpuStandIn(NUM_DEVICES)
    with torch.no_grad():
        graph = AttentionGraph(runtime, AttentionCase(**LAYER, device=runtime.device), NUM_LAYERS, "pallas")
        numbers = [torch_xla._XLAC._xla_get_tensor_id(cache) for cache in graph.caches]
        outputs = [graph.run(*graph.arguments), *graph.caches]
    arguments, _ = torch_xla._XLAC._get_tensors_xla_device_data_node(outputs)
    return {
        "module": base64.b64encode(xm.get_stablehlo_bytecode(outputs)).decode(),
        "aliases": [(arguments.index(number), result) for result, number in enumerate(numbers, start=1)],
        "argument_dims": [HEADS_DIM if number in numbers else None for number in arguments],
        "result_dims": [None, *(HEADS_DIM for _ in numbers)],
    }


if __name__ == "__main__":
    print(json.dumps(_trace()))
