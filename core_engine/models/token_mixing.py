"""Finds operations outside attention through which one token's row reaches another's.

The engine packs tokens of many requests into one row of tokens and separates them in attention only, so
a model with a convolution, a running sum or a recurrence along the tokens would leak between requests.
The model runs once on the meta device with a number of tokens that divides no other dimension; every
operation that reduces, scans, cuts or shifts a dimension of exactly that size is reported, unless its
result comes to nothing: it, and what is computed from it alone, meets no other tensor and is not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["ALONG_DIM", "TokenMixingProbe", "dims_along", "probe_length"]

#: Operations that look along a dimension given by ``dim`` (their second argument, or the keyword).
ALONG_DIM = frozenset(
    {"cumsum", "cumprod", "logcumsumexp", "cummax", "sort", "topk", "softmax", "_softmax", "_log_softmax",
     "sum", "mean", "amax", "amin", "argmax", "argmin", "max", "min", "prod", "var", "std", "var_mean",
     "flip", "roll", "slice", "select", "diff", "unfold", "logsumexp", "linalg_vector_norm", "any", "all"}
)  # fmt: skip
#: Operations that contract the last dimension of the first operand with the next-to-last of the second.
_CONTRACTIONS = frozenset({"mm", "bmm", "addmm", "baddbmm"})
_DIM_POSITION = {"roll": 2, "linalg_vector_norm": 2}


def probe_length(model: torch.nn.Module) -> int:
    """Return a prime number of tokens that divides no dimension of the model's parameters."""
    sizes = {size for parameter in model.parameters() for size in parameter.shape if size > 1}
    primes = (candidate for candidate in range(29, 10_000, 2) if _is_prime(candidate))
    return next(prime for prime in primes if all(size % prime for size in sizes))


class TokenMixingProbe(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it bare
    """Watches one forward pass over ``num_tokens`` tokens."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.num_tokens = num_tokens
        self._used: str | None = None
        #: Results of operations that mix tokens, and of what took nothing else, by the operation's name.
        self._mixed: Any = WeakTensorKeyDictionary()

    @property
    def found(self) -> str | None:
        """The first such operation whose result was used; after the pass, or that something still keeps."""
        return self._used or next(iter(self._mixed.values()), None)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation and note it when it mixes tokens or uses what was mixed."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._used is None:
            self._note(func, args, kwargs, result)
        return result

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        operands = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        mixed = [self._mixed[operand] for operand in operands if operand in self._mixed]
        name = func.__name__.split(".")[0]
        if mixed:
            shape_tells = torch.Tag.dynamic_output_shape in func.tags
            if len(mixed) < len(operands) or func._schema.is_mutable or shape_tells:
                self._used = mixed[0]
                return
            name = mixed[0]
        elif not self._mixes(name, args, kwargs, result):
            return
        elif func._schema.is_mutable:
            self._used = name.strip("_")
            return
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._mixed[leaf] = name.strip("_")

    def _mixes(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> bool:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if not any(self.num_tokens in tensor.shape for tensor in tensors):
            return False
        if name in ("convolution", "constant_pad_nd", "_fft_r2c", "_fft_c2c", "im2col"):
            return name != "constant_pad_nd" or self.num_tokens not in result.shape
        if name in _CONTRACTIONS:
            return tensors[-2].shape[-1] == self.num_tokens
        if name in ALONG_DIM:
            return self._touches_tokens(name, args, kwargs, tensors[0], result)
        return False

    def _touches_tokens(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], tensor: torch.Tensor, result: Any
    ) -> bool:
        if name == "slice" and isinstance(result, torch.Tensor) and result.shape == tensor.shape:
            return False
        touched = dims_along(name, args, kwargs, tensor)
        return any(tensor.shape[dim] == self.num_tokens for dim in touched)


def dims_along(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], tensor: torch.Tensor
) -> Sequence[int]:
    """Return the dimensions that an operation of `ALONG_DIM` looks along in its first operand, ``tensor``."""
    position = _DIM_POSITION.get(name, 1)
    dims: Any = kwargs.get("dim", kwargs.get("dims", args[position] if len(args) > position else None))
    if name == "topk":
        dims = kwargs.get("dim", args[2] if len(args) > 2 else -1)
    elif name == "slice":
        dims = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    elif name == "sort" and isinstance(dims, bool):
        dims = -1
    if dims is None or isinstance(dims, bool):
        return range(tensor.dim())
    if isinstance(dims, int):
        return (dims,)
    return tuple(dims) or range(tensor.dim())


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(3, int(number**0.5) + 1, 2))
