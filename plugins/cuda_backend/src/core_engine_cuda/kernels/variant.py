"""Variant: one kernel with its constants, as it is launched and as it is compiled ahead of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

__all__ = ["TRITON_DTYPES", "Variant"]

#: Triton's names of the dtypes that the kernels serve.
TRITON_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A kernel whose machine code depends on nothing but what stands here.

    The kernels specialise on no integer argument. On alignment they specialise for pointers in ``aligned``
    alone, and the launch gives those 16-byte aligned addresses only. So a launch finds the code that
    ``source`` describes.
    """

    #: For tables: the kernel and what distinguishes this variant.
    name: str
    #: A `triton.JITFunction`, or its stand-in of Triton's interpreter.
    kernel: Any
    #: Pointer argument → what it points to, by Triton's name.
    aligned: Mapping[str, str]
    #: The same for pointers of any alignment.
    unaligned: Mapping[str, str]
    floats: tuple[str, ...]
    constants: Mapping[str, int | bool]
    num_warps: int
    num_stages: int
    #: Let the compiler make one operation of a multiplication and an addition.
    is_fused: bool = True
    #: Of one thread; None leaves it to the compiler.
    max_registers: int | None = None
    #: How many programs are meant to work side by side on one multiprocessor.
    programs_per_sm: int = 1

    @property
    def options(self) -> dict[str, Any]:
        """The compiler's options."""
        # Fusing multiplications and additions is said, because its default changes between releases of
        # Triton.
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "maxnreg": self.max_registers,
            "enable_fp_fusion": self.is_fused,
        }

    @cached_property
    def signature(self) -> dict[str, str]:
        """Every argument's type by Triton's names; what is no pointer, float or constant is an int32."""
        types = {name: f"*{target}" for name, target in {**self.aligned, **self.unaligned}.items()}
        types |= dict.fromkeys(self.floats, "fp32") | dict.fromkeys(self.constants, "constexpr")
        return {name: types.get(name, "i32") for name in self.kernel.arg_names}

    def source(self) -> Any:
        """Return what `triton.compile` takes. Not with TRITON_INTERPRET set."""
        from triton.compiler import ASTSource

        names = list(self.signature)
        return ASTSource(
            self.kernel,
            self.signature,
            {(names.index(name),): value for name, value in self.constants.items()},
            {(names.index(name),): [["tt.divisibility", 16]] for name in self.aligned},
        )

    def launch(self, grid: tuple[int, ...], **arguments: Any) -> None:
        """Start ``grid`` programs on the current stream of the current device."""
        self.kernel[grid](**arguments, **self.constants, **self.options)
