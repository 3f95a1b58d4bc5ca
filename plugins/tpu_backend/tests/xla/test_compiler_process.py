"""One process compiles graph after graph; what goes wrong in it is the result of one graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from core_engine_tpu.chips import parse_target
from core_engine_tpu.compiler_process import CompilerProcess
from core_engine_tpu.runtime_tracing import LoweredGraph, TracingRuntime

from core_engine.plugin import EngineError


@pytest.fixture(scope="module")
def graph() -> LoweredGraph:
    """Two donated tensors of one shape: the second is written to, the first is not."""
    runtime = TracingRuntime(num_devices=1, memory_bytes=1 << 30)
    with torch.no_grad():
        first, second = (runtime.zeros((64, 128), torch.float32) for _ in range(2))
        runtime.donate(second)
        runtime.donate(first)
        second += runtime.placeholder((64, 128), torch.float32)
        return runtime.lower([first.sum()])


@pytest.fixture
def compiler() -> Iterator[CompilerProcess]:
    with CompilerProcess(parse_target("v5e:1x1")) as process:
        yield process


def test_donated_tensors_are_results_that_share_their_own_argument(graph: LoweredGraph) -> None:
    from jax._src.interpreters import mlir
    from jaxlib.mlir.dialects import stablehlo

    with mlir.make_ir_context() as context:
        text = str(stablehlo.deserialize_portable_artifact(context, graph.module))
    (returned,) = (line for line in text.splitlines() if line.strip().startswith("return"))
    results = [name.strip() for name in returned.split(" : ")[0].replace("return", "").split(",")]
    arguments = {result: argument for argument, result in graph.aliases}
    assert sorted(arguments) == [1, 2]
    # The first tensor is its argument as it came; the second is what was added to its own.
    assert results[2] == f"%arg{arguments[2]}"
    (added,) = (line for line in text.splitlines() if line.strip().startswith(f"{results[1]} ="))
    assert f"%arg{arguments[1]}" in added
    assert f"%arg{arguments[2]}" not in added


def test_sizes_are_told(graph: LoweredGraph, compiler: CompilerProcess) -> None:
    sizes = compiler.compile(graph)
    tensor = 64 * 128 * 4
    assert sizes["alias_bytes"] == 2 * tensor
    assert sizes["argument_bytes"] == 3 * tensor
    assert 2 * tensor < sizes["output_bytes"] < 3 * tensor
    assert sizes["num_custom_calls"] == 0


def test_a_graph_that_is_none_is_an_error_of_its_own(graph: LoweredGraph, compiler: CompilerProcess) -> None:
    broken = LoweredGraph(module=b"no graph", aliases=(), argument_dims=(), result_dims=())
    assert "error" in compiler.compile(broken)
    assert "error" not in compiler.compile(graph)


def test_when_the_process_dies_the_next_graph_gets_a_new_one(
    graph: LoweredGraph, compiler: CompilerProcess
) -> None:
    assert "error" not in compiler.compile(graph)
    first = compiler._process
    assert first is not None
    first.kill()
    assert compiler.compile(graph)["error"] == "the compiler's process was ended by SIGKILL"
    assert "error" not in compiler.compile(graph)
    assert compiler._process is not first


def test_the_process_ends_with_the_context(graph: LoweredGraph) -> None:
    with CompilerProcess(parse_target("v5e:1x1")) as compiler:
        compiler.compile(graph)
        process = compiler._process
    assert process is not None
    assert process.poll() is not None


def test_a_program_that_is_too_large_names_the_bytes(compiler: CompilerProcess) -> None:
    runtime = TracingRuntime(num_devices=1, memory_bytes=1 << 30)
    with torch.no_grad():
        graph = runtime.lower([runtime.placeholder((24, 1 << 28), torch.float32) + 1])
    assert "it needs 24.00G of memory, and the chip has 15.75G" in compiler.compile(graph)["error"]


def test_a_tensor_that_is_too_large_alone_names_the_bytes(
    compiler: CompilerProcess, monkeypatch: pytest.MonkeyPatch, graph: LoweredGraph
) -> None:
    # What libtpu says of some large gathers; which of the two texts it takes is its own business.
    text = "RESOURCE_EXHAUSTED: Allocation (size=30439309312) would exceed memory (size=17179869184) :: #a"
    compiler.compile(graph)
    monkeypatch.setattr("core_engine_tpu.compiler_process._exchange", lambda *_: {"error": text})
    error = compiler.compile(graph)["error"]
    assert error.startswith("one of its tensors takes 29,029.2 MiB of memory, and the chip has 16,384.0 MiB;")


def test_flags_that_the_compiler_does_not_know_are_told(
    graph: LoweredGraph, compiler: CompilerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--nosuchflag=1")
    with pytest.raises(EngineError, match="Unknown command line flag 'nosuchflag'"):
        compiler.compile(graph)


def test_a_compiler_that_does_not_start_is_an_error(
    graph: LoweredGraph, compiler: CompilerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(EngineError, match=r"libtpu cannot compile for v5e:1x1: .* ended with code 1"):
        compiler.compile(graph)
