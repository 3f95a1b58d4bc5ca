"""Compile every variant of the kernels for GPUs that are not there, and tell what each takes.

    python -m core_engine_cuda.kernels.ahead_of_time

Needs Triton's own compiler and no GPU. Not with TRITON_INTERPRET set, which leaves nothing to compile.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core_engine_cuda.kernels.tiles import REGISTERS, SHARED_MEMORY, SMALL_SHARED_MEMORY
from core_engine_cuda.kernels.variant import Variant

__all__ = ["Compiled", "compile_all", "compile_variant", "main"]

_WARP = 32
#: Shared memory that each program takes besides its own.
_RESERVED_BYTES = 1024
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """What one variant takes on one architecture."""

    variant: str
    #: Compute capability without its point: 90 for 9.0.
    arch: int
    num_warps: int
    #: Programs that should find room on one multiprocessor.
    programs_per_sm: int
    #: Registers of each thread.
    registers: int
    #: Memory outside of registers for each thread: whatever spilled, and 0 if nothing did.
    stack_bytes: int
    #: Of each program.
    shared_bytes: int

    @property
    def faults(self) -> tuple[str, ...]:
        """What of it no kernel should have."""
        found = []
        if self.stack_bytes:
            found.append(f"{self.stack_bytes} bytes of each thread spill")
        programs = f"the {self.programs_per_sm} programs of a multiprocessor"
        if self.programs_per_sm * (self.shared_bytes + _RESERVED_BYTES) > SHARED_MEMORY[self.arch]:
            found.append(
                f"{programs} ask for more than its {SHARED_MEMORY[self.arch]} bytes of shared memory"
            )
        if self.arch == 80 and self.shared_bytes > SMALL_SHARED_MEMORY:
            found.append(
                f"a program asks for more than the {SMALL_SHARED_MEMORY} bytes of smaller GPUs of these tiles"
            )
        if self.programs_per_sm * self.num_warps * _WARP * self.registers > REGISTERS:
            found.append(f"{programs} ask for more than its {REGISTERS} registers")
        return tuple(found)


def compile_variant(variant: Variant, arch: int) -> Compiled:
    """Compile for ``arch``, a compute capability without its point. Raises what Triton raises."""
    import triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", arch, _WARP)
    kernel = triton.compile(variant.source(), target=target, options=variant.options)
    registers, stack_bytes = _resources(kernel.asm["cubin"])
    return Compiled(
        variant=variant.name,
        arch=arch,
        num_warps=variant.num_warps,
        programs_per_sm=variant.programs_per_sm,
        registers=registers,
        stack_bytes=stack_bytes,
        shared_bytes=kernel.metadata.shared,
    )


def compile_all(archs: Iterable[int], only: str = "") -> Iterator[Compiled]:
    """Compile the variants whose name holds ``only`` for each of ``archs``."""
    from core_engine_cuda.kernels.variants import all_variants

    for arch in archs:
        for variant in all_variants(arch // 10):
            if only in variant.name:
                yield compile_variant(variant, arch)


def main(arguments: list[str] | None = None) -> int:
    """Print a row for each variant and architecture; return 1 if any has a fault."""
    parser = argparse.ArgumentParser(prog="ahead_of_time", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arch", type=int, nargs="+", default=list(SHARED_MEMORY), metavar="90")
    parser.add_argument("--only", default="", metavar="TEXT", help="variants whose name holds TEXT")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(arguments)
    is_faulty = False
    if not options.json:
        print(f"{'variant':<34} {'arch':>6} {'warps':>6} {'registers':>10} {'stack':>6} {'shared':>8}")
    for row in compile_all(options.arch, options.only):
        is_faulty |= bool(row.faults)
        print(json.dumps(asdict(row)) if options.json else _line(row), flush=True)
    return int(is_faulty)


def _line(row: Compiled) -> str:
    numbers = f"{row.num_warps:>6} {row.registers:>10} {row.stack_bytes:>6} {row.shared_bytes:>8}"
    return f"{row.variant:<34} {'sm_' + str(row.arch):>6} {numbers}  {'; '.join(row.faults)}".rstrip()


def _resources(cubin: bytes) -> tuple[int, int]:
    """Read the registers and the stack bytes of a thread from machine code."""
    from triton import knobs

    tool: Any = knobs.nvidia.cuobjdump
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        told = subprocess.run(
            [tool.path, "--dump-resource-usage", str(file)], check=True, capture_output=True, text=True
        ).stdout
    match = _RESOURCES.search(told)
    if match is None:
        raise ValueError(f"cuobjdump told nothing about registers: {told!r}")
    return int(match[1]), int(match[2])


if __name__ == "__main__":
    sys.exit(main())
