"""``python compile_for_tpu.py TARGET < module``: compile StableHLO for a TPU that need not be there.

Prints the compiler's count of bytes as JSON. A process of its own: libtpu does not share one with torch_xla.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["compile_for_tpu"]


def compile_for_tpu(module: bytes, target: str) -> dict[str, int]:
    """Compile in a process; raises `CalledProcessError` where the compiler refuses."""
    environment = {
        **os.environ,
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": f"{target.partition(':')[0]}-1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, str(Path(__file__)), target]
    done = subprocess.run(command, input=module, env=environment, capture_output=True, check=True)
    sizes: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return sizes


def _main(target: str) -> None:
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax.experimental import topologies
    from jaxlib import _jax
    from jaxlib.mlir.dialects import stablehlo

    with mlir.make_ir_context() as context:
        graph = stablehlo.deserialize_portable_artifact(context, sys.stdin.buffer.read())
        module = mlir.module_to_bytecode(graph)
    topology = topologies.get_topology_desc(
        topology_name=target, platform="tpu", chips_per_host_bounds=[1, 1, 1]
    )
    device = topology.devices[0]
    compiled = device.client.compile(module, _jax.DeviceList((device,)), xla_client.CompileOptions())
    sizes = compiled.get_compiled_memory_stats()
    print(json.dumps({"arguments": sizes.argument_size_in_bytes, "temporary": sizes.temp_size_in_bytes}))


if __name__ == "__main__":
    _main(sys.argv[1])
