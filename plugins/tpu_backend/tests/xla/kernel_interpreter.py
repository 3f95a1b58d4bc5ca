"""The attention kernel itself on the CPU, by jax's interpreter for TPU kernels.

The interpreter simulates the chip's memories, copies and semaphores, and fills memory that nobody wrote with
NaN. Two things that the kernel does are beyond the interpreter of jax 0.7.1, and are said otherwise here,
with the same meaning: viewing a buffer in another shape or as wider words (the buffer is read first and the
view is made of the value), and storing under a mask (read, choose, write; the interpreter checks masks of
more than one dimension against the wrong axis).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.experimental.pallas import tpu as pltpu
from torch_xla.experimental.pallas_kernels import ragged_paged_attention_v2 as kernel

__all__ = ["InterpretingRuntime"]


class InterpretingRuntime:
    """Stands for an `XlaRuntime` on a TPU, over torch's CPU tensors."""

    runs_pallas = True
    device = torch.device("cpu")

    def prepare_kernels(self) -> None:
        """Nothing to prepare."""

    def ragged_paged_attention(
        self,
        *tensors: torch.Tensor,
        scale: float,
        sliding_window: int | None,
        soft_cap: float | None,
        pages_at_once: int,
        queries_at_once: int,
    ) -> torch.Tensor:
        """See `XlaRuntime.ragged_paged_attention`."""
        with _interpreter():
            attended = kernel.ragged_paged_attention(
                *map(_to_jax, tensors),
                sm_scale=scale,
                sliding_window=sliding_window,
                soft_cap=soft_cap,
                num_kv_pages_per_block=pages_at_once,
                num_queries_per_block=queries_at_once,
            )
        return torch.from_numpy(np.array(attended, dtype=np.float32)).to(tensors[0].dtype)


def _to_jax(tensor: torch.Tensor) -> jax.Array:
    if tensor.dtype is torch.bfloat16:
        return jnp.array(tensor.float().numpy(), dtype=jnp.bfloat16)
    return jnp.array(tensor.numpy())


class _Pages:
    """What a buffer of pages held when it was read, with the kernel's views of it."""

    def __init__(self, value: jax.Array) -> None:
        self._value = value
        self.dtype, self.shape = value.dtype, value.shape

    def reshape(self, *shape: int) -> _Pages:
        return _Pages(self._value.reshape(*shape))

    def bitcast(self, dtype: Any) -> _Pages:
        """Join rows that share words; the first is the low end, as in a TPU's tiles."""
        rows, width = self.shape
        packed = jnp.dtype(dtype).itemsize // self.dtype.itemsize
        words = self._value.reshape(rows // packed, packed, width).swapaxes(1, 2)
        return _Pages(jax.lax.bitcast_convert_type(words, dtype))

    def __getitem__(self, index: Any) -> jax.Array:
        return self._value[index]


@contextmanager
def _interpreter() -> Iterator[None]:
    copies = kernel.MultiPageAsyncCopyDescriptor
    wait = copies.wait

    def wait_and_read(self: Any) -> _Pages:
        return _Pages(wait(self)[...])

    def masked_store(ref: Any, idx: Any, val: jax.Array, mask: jax.Array) -> None:
        ref[idx] = jnp.where(mask, val, ref[idx])

    copies.wait, kernel.pl.store = wait_and_read, masked_store
    try:
        with (
            warnings.catch_warnings(),
            pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(uninitialized_memory="nan")),
        ):
            warnings.simplefilter("ignore", DeprecationWarning)  # the kernel uses old names of jax's
            yield
    finally:
        copies.wait = wait
        del kernel.pl.store  # jax's own comes from the module's __getattr__
