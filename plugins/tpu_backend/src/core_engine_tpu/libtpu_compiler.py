"""Compiles StableHLO for TPUs that are not there.

``python -m core_engine_tpu.libtpu_compiler v4:2x2 4 megacore`` compiles for that grid of chips and so many of
its devices; the last word, which most chips do not need, is libtpu's name for the way to drive them.

A process of its own, for two reasons: libtpu ends its process where a compiler's check fails, and it does
not share a process with torch_xla. It imports the standard library and jax, and nothing of core-engine.

It says ``{"ready": true}`` once it can compile. Then it reads one JSON object a line from stdin, whose
``module`` names a file and whose other fields are those of `core_engine_tpu.runtime_tracing.LoweredGraph`,
and answers each with one line on stdout: the sizes that the compiler tells, or ``{"error": text}``.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from typing import Any, TextIO

__all__: list[str] = []

#: Without these libtpu asks the cloud's metadata server who it is, and logs at length that nobody answers.
_QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # Nothing here opens a TPU, so several may compile at once, also beside an engine that runs on one.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_PLATFORMS": "cpu",
}
#: A kernel of Pallas in StableHLO.
_KERNEL = "tpu_custom_call"
#: What the partitioner is told within a graph, and where a device computes by itself; see
#: `core_engine_tpu.runtime_tracing.TracingRuntime`.
_PARTITIONER_CALLS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})
_MANUAL = "manual"


class Compiler:
    """libtpu's compiler for the first ``num_devices`` of one target, e.g. ``"v5e:2x2"``."""

    def __init__(self, target: str, num_devices: int, config_name: str | None = None) -> None:
        kind, _, grid = target.partition(":")
        chips = [int(side) for side in grid.split("x")]
        os.environ.update(_QUIET, TPU_ACCELERATOR_TYPE=f"{kind}-{math.prod(chips)}")
        from jax.experimental import topologies

        options = {"chip_config_name": config_name} if config_name else {}
        # All chips on one host.
        topology = topologies.get_topology_desc(
            topology_name=target, platform="tpu", chips_per_host_bounds=[*chips, 1][:3], **options
        )
        self._devices = list(topology.devices)[:num_devices]

    def compile(self, job: dict[str, Any]) -> dict[str, Any]:
        """Compile one graph and return its sizes on one device."""
        from jax._src.interpreters import mlir
        from jax._src.lib import xla_client
        from jaxlib import _jax
        from jaxlib.mlir.dialects import stablehlo

        count = len(self._devices)
        with open(job["module"], "rb") as file, mlir.make_ir_context() as context:
            graph = stablehlo.deserialize_portable_artifact(context, file.read())
            _place(graph, job, count)
            num_kernels = str(graph).count(f"@{_KERNEL}(")
            module = mlir.module_to_bytecode(graph)
        options = xla_client.CompileOptions()
        options.num_replicas, options.num_partitions = 1, count
        build = options.executable_build_options
        build.num_replicas, build.num_partitions, build.use_spmd_partitioning = 1, count, count > 1
        started_s = time.perf_counter()
        compiled = self._devices[0].client.compile(module, _jax.DeviceList(tuple(self._devices)), options)
        seconds = time.perf_counter() - started_s
        sizes = compiled.get_compiled_memory_stats()
        return {
            "seconds": seconds,
            "argument_bytes": sizes.argument_size_in_bytes,
            "output_bytes": sizes.output_size_in_bytes,
            "alias_bytes": sizes.alias_size_in_bytes,
            "temp_bytes": sizes.temp_size_in_bytes,
            "code_bytes": sizes.generated_code_size_in_bytes,
            "num_custom_calls": num_kernels,
        }


def _place(graph: Any, job: dict[str, Any], num_devices: int) -> None:
    """Write into the graph which arguments give their memory to results, and what is divided how."""
    from jaxlib.mlir import ir

    functions = {ir.StringAttr(each.attributes["sym_name"]).value: each for each in graph.body.operations}
    main = functions["main"]
    marks: list[dict[str, Any]] = [{} for _ in main.arguments]
    result_marks: list[dict[str, Any]] = [{} for _ in main.type.results]
    for argument, result in job["aliases"]:
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), result)
        marks[argument]["tf.aliasing_output"] = number
    if num_devices > 1:
        _place_calls(main, num_devices)
        types = (*main.type.inputs, *main.type.results)
        dims = (*job["argument_dims"], *job["result_dims"])
        for mark, kind, dim in zip((*marks, *result_marks), types, dims, strict=True):
            rank = ir.RankedTensorType(kind).rank
            mark["mhlo.sharding"] = ir.StringAttr.get(_division(rank, dim, num_devices))
    main.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(each) for each in marks])
    main.result_attrs = ir.ArrayAttr.get([ir.DictAttr.get(each) for each in result_marks])


def _place_calls(main: Any, num_devices: int) -> None:
    """Turn the dimension that a call of the partitioner's carries into the division of its result."""
    from jaxlib.mlir import ir

    for operation in main.body.blocks[0].operations:
        if operation.operation.name != "stablehlo.custom_call" or "mhlo.sharding" in operation.attributes:
            continue
        target = ir.StringAttr(operation.attributes["call_target_name"]).value
        if target in _PARTITIONER_CALLS:
            dim = json.loads(ir.StringAttr(operation.attributes["backend_config"]).value)
            rank = ir.RankedTensorType(operation.results[0].type).rank
            text = "{manual}" if dim == _MANUAL else _division(rank, dim, num_devices)
            operation.attributes["backend_config"] = ir.StringAttr.get("")
            operation.attributes["mhlo.sharding"] = ir.StringAttr.get(text)


def _division(rank: int, dim: int | None, num_devices: int) -> str:
    """Return XLA's way to write that a tensor is divided along ``dim``, or whole on each device."""
    if dim is None:
        return "{replicated}"
    parts = ",".join(str(num_devices if place == dim else 1) for place in range(rank))
    return f"{{devices=[{parts}]<=[{num_devices}]}}"


def _answer(compiler: Compiler, job: dict[str, Any]) -> dict[str, Any]:
    try:
        return compiler.compile(job)
    except Exception as error:  # whatever the compiler raises is the graph's result
        return {"error": f"{type(error).__name__}: {error}"}


def _own_stdout() -> TextIO:
    """Keep stdout for the answers; what libraries print goes to stderr."""
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return private


def main() -> None:
    """Answer every job on stdin."""
    answers = _own_stdout()
    target, num_devices, *config_name = sys.argv[1:]
    compiler = Compiler(target, int(num_devices), *config_name)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(compiler, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
