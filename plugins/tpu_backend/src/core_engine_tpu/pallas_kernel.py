"""Lowering of torch_xla's ragged paged attention kernel, by jax, for a TPU that need not be there.

The only module that imports jax.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from core_engine.plugin import BackendLoadError

__all__ = ["KernelCall", "check_jax", "lower_kernel"]

_CALL = re.compile(r'custom_call @tpu_custom_call\(.*?backend_config = "((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2}|[\\\"])")


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Everything that the machine code of one call of the kernel depends on.

    Shapes are those of `TpuKernels.ragged_paged_attention`; ``dtype`` is that of queries and pages.
    """

    queries: tuple[int, ...]
    pages: tuple[int, ...]
    tables: tuple[int, ...]
    dtype: str
    scale: float
    sliding_window: int | None
    soft_cap: float | None
    pages_at_once: int
    queries_at_once: int

    def shapes(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Return shape and dtype of the kernel's arguments, in its order."""
        num_reqs = self.tables[0]
        return (
            (self.queries, self.dtype),
            (self.pages, self.dtype),
            ((num_reqs,), "int32"),
            (self.tables, "int32"),
            ((num_reqs + 1,), "int32"),
            ((1,), "int32"),
        )

    def settings(self) -> dict[str, Any]:
        """Return the kernel's keyword arguments."""
        return {
            "sm_scale": self.scale,
            "sliding_window": self.sliding_window,
            "soft_cap": self.soft_cap,
            # Left out, the kernel would ask jax for the TPU of this machine.
            "num_kv_pages_per_block": self.pages_at_once,
            "num_queries_per_block": self.queries_at_once,
        }


def check_jax() -> None:
    """Raise `BackendLoadError` with the line to type where jax cannot be imported."""
    try:
        import jax  # noqa: F401
    except ImportError as error:
        raise BackendLoadError(
            f"the attention kernel is lowered by jax, which cannot be imported ({error}): "
            "pip install 'core-engine[tpu]', or do without the kernel: --backend-option attention=dense"
        ) from error


@cache
def lower_kernel(call: KernelCall) -> str:
    """Return the payload of a ``tpu_custom_call``; the same call is lowered once per process.

    The payload is of the version that older compilers read, for the libtpu that runs it may be older
    than jax.
    """
    import jax
    from jax import export
    from torch_xla.experimental.pallas_kernels.ragged_paged_attention_v2 import ragged_paged_attention

    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in call.shapes()]
    kernel = jax.jit(lambda *arrays: ragged_paged_attention(*arrays, **call.settings()))
    with _jax_on_the_host(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the kernel uses old names of jax's
        text = export.export(kernel, platforms=["tpu"])(*arguments).mlir_module()
    found = _CALL.search(text)
    if found is None:
        raise BackendLoadError(f"jax {jax.__version__} lowered the attention kernel to no TPU call")
    return _ESCAPE.sub(_unescape, found[1])


def _unescape(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code, 16)) if len(code) == 2 else code


@contextmanager
def _jax_on_the_host() -> Iterator[None]:
    """Let jax, if it starts its devices here, start the CPU only: the TPU is torch_xla's."""
    import jax

    before = jax.config.jax_platforms
    if before is None:
        jax.config.update("jax_platforms", "cpu")
    try:
        yield
    finally:
        if before is None:
            jax.config.update("jax_platforms", None)
