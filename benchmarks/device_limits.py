"""Tell what device and software are here, and measure a copy and a product of matrices; one line of JSON.

python benchmarks/device_limits.py cuda
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch
from roofline import known_limits

_ROUNDS = 10


def main() -> int:
    """Print the line; return 1 where there is no such device."""
    kind = sys.argv[1]
    if kind != "cpu" and not torch.cuda.is_available():
        built = f"torch {torch.__version__} finds no GPU"
        print(json.dumps({"error": f"no GPU: {built} (its CUDA is {torch.version.cuda})"}))
        return 1
    device = torch.device("cpu" if kind == "cpu" else "cuda")
    result = {**_describe(device), "versions": _versions()}
    known = known_limits(result["device"])
    result["data_sheet"] = {"tflop_per_s": known.tflop_per_s, "gb_per_s": known.gb_per_s}
    scale = 16 if kind == "cpu" else 1
    source = torch.empty((1 << 30) // scale, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    seconds = _time(lambda: target.copy_(source), device)
    result["copy_gb_per_s"] = 2 * source.numel() / seconds / 1e9
    side = 8192 // scale
    matrix = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    seconds = _time(lambda: matrix @ matrix, device)
    result["matmul_tflop_per_s"] = 2 * side**3 / seconds / 1e12
    print(json.dumps(result))
    return 0


def _describe(device: torch.device) -> dict[str, Any]:
    if device.type == "cpu":
        return {"device": platform.processor() or platform.machine(), "memory_bytes": None}
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
    }


def _versions() -> dict[str, str | None]:
    names = ("torch", "triton", "transformers", "numpy", "core-engine", "core-engine-cuda")
    found: dict[str, str | None] = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _time(run: Callable[[], object], device: torch.device) -> float:
    """Return the mean seconds of one call, after two that do not count."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(2):
        run()
    wait()
    started = time.perf_counter()
    for _ in range(_ROUNDS):
        run()
    wait()
    return (time.perf_counter() - started) / _ROUNDS


if __name__ == "__main__":
    sys.exit(main())
