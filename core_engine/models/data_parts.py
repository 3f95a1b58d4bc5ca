"""Parts of a model that run only with data, each tried with data and found to keep tokens apart.

Some mixture models ask for values while they run: which experts were hit, how many tokens each one got.
Their code cannot run on the meta device. The smallest module around such code that maps rows of tokens to
rows of tokens is then run on the CPU, at its true sizes, over a few random rows and with random weights
that take next to no memory: together, in two shares, and as many copies of one row, all of which meet in
the same experts. Only when a row's result is the same in each company does a stand-in with outputs of the
right shapes take the module's place in the probing passes. Attention inside such a module gives each token
a function of its own query, key and value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from core_engine.models.mask_probe import kind_of

__all__ = ["DataParts"]

#: One token alone, then two: unequal shares show which dimension of an output counts the tokens.
_SHARES = (slice(0, 1), slice(1, 3))
_NUM_ROWS = 3
#: More than experts that drop tokens when they are full take at least.
_NUM_COPIES = 32
#: Far apart, so that what follows the longest sequence at hand differs between the shares.
_POSITIONS = (3, 2_000_003, 4)
#: Sizes of the rows: a small one shows what a large one hides, such as other rows' share in a softmax.
_SCALES = (1.0, 0.1, 0.5)
#: By the largest value; float32 rounds below it.
_TOLERANCE = 1e-5
#: Rows that differ less than this, by the largest value, prove nothing.
_LEAST_SPREAD = 1e-2


class _NotRows(Exception):
    """The module does not map rows of tokens to rows of tokens, so its parent is tried."""


class _Mixes(_NotRows):
    """It does, and a row's result depends on the other rows."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What is known of a kind of module that keeps tokens apart."""

    #: The output with a meta tensor for each tensor.
    output: Any
    #: Whether attention was called inside, which each pass must see.
    has_attention: bool


class DataParts:
    """Stand-ins for the parts of ``backbone`` that need data, kept from one probing pass to the next.

    ``calls`` is the list to which attention calls are recorded. ``mixing`` names the last part that was
    tried with data and that mixes tokens.
    """

    def __init__(self, backbone: torch.nn.Module, calls: list[Any], num_tokens: int) -> None:
        self.mixing: str | None = None
        self._backbone = backbone
        self._calls = calls
        self._num_tokens = num_tokens
        self._positions: torch.Tensor | None = None
        self._verdicts: dict[Any, _Verdict] = {}
        self._types: set[type] = set()
        self._with_data = False

    @contextmanager
    def stand_in(self, positions: torch.Tensor) -> Iterator[None]:
        """Let modules that fail without data be tried with data; ``positions`` are the pass's, on meta."""
        self._positions = positions
        modules = {
            module: (name, module.__dict__.get("forward"))
            for name, module in self._backbone.named_modules()
            if module is not self._backbone
        }
        for module, (name, _) in modules.items():
            module.forward = self._guard(name, module, module.forward)
        try:
            yield
        finally:
            for module, (_, forward) in modules.items():
                del module.forward
                if forward is not None:
                    module.forward = forward

    def _guard(self, name: str, module: torch.nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self._with_data:
                return forward(*args, **kwargs)
            known = type(module) in self._types and self._verdicts.get(self._kind(module, (args, kwargs)))
            if known:
                return self._repeat(module, known, (args, kwargs))
            mark = len(self._calls)
            try:
                return forward(*args, **kwargs)
            except (RuntimeError, NotImplementedError) as error:
                del self._calls[mark:]
                try:
                    return self._try(module, (args, kwargs))
                except Exception as reason:  # with data it may fail in any way; then its parent is tried
                    del self._calls[mark:]
                    if isinstance(reason, _Mixes):
                        self.mixing = name
                    raise error from None

        return guarded

    def _try(self, module: torch.nn.Module, inputs: Any) -> Any:
        mark = len(self._calls)
        rows = self._rows(inputs)
        together = self._run(module, rows, slice(None))
        end = len(self._calls)
        shares = [self._run(module, rows, share) for share in _SHARES]
        alike = self._run(module, rows, [0] * _NUM_COPIES)
        del self._calls[end:]
        floats = [leaf for leaf in _tensors(inputs) if leaf.is_floating_point()]
        verdict = _Verdict(self._check(together, shares, alike, floats[0].dtype), end > mark)
        self._verdicts[self._kind(module, inputs)] = verdict
        self._types.add(type(module))
        return verdict.output

    def _repeat(self, module: torch.nn.Module, verdict: _Verdict, inputs: Any) -> Any:
        for leaf in _tensors(inputs):  # an operation with each, so that a probe sees what is used here
            leaf.where(torch.empty((), dtype=torch.bool, device="meta"), 0)
        if verdict.has_attention:
            self._run(module, self._rows(inputs), slice(None))
        return pytree.tree_map_only(torch.Tensor, torch.empty_like, verdict.output)

    def _rows(self, inputs: Any) -> Callable[[Any], Any]:
        """Return a function from a choice of rows to the inputs with data for these rows."""
        leaves, structure = pytree.tree_flatten(inputs)
        generator = torch.Generator().manual_seed(0)
        data: list[tuple[Any, int | None]] = []
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor) or kind_of(leaf) is not None:
                data.append((leaf, None))
                continue
            dims = [dim for dim, size in enumerate(leaf.shape) if size == self._num_tokens]
            if len(dims) != 1:
                raise _NotRows
            shape = [_NUM_ROWS if dim == dims[0] else size for dim, size in enumerate(leaf.shape)]
            if leaf is self._positions:
                data.append((torch.tensor(_POSITIONS, device="cpu").view(shape), dims[0]))
            elif leaf.is_floating_point():
                scales = [_NUM_ROWS if dim == dims[0] else 1 for dim in range(leaf.dim())]
                values = torch.randn(shape, generator=generator, device="cpu")
                data.append((values * torch.tensor(_SCALES, device="cpu").view(scales), dims[0]))
            else:  # what its values may be is not known
                raise _NotRows
        if all(dim is None for _, dim in data):
            raise _NotRows

        def choose(rows: slice | list[int]) -> Any:
            chosen = [
                value if dim is None else value[(slice(None),) * dim + (rows,)].clone() for value, dim in data
            ]
            return pytree.tree_unflatten(chosen, structure)

        return choose

    def _run(self, module: torch.nn.Module, rows: Callable[[Any], Any], choice: slice | list[int]) -> Any:
        self._with_data = True
        try:
            with torch.device("cpu"):
                args, kwargs = rows(choice)
                return torch.func.functional_call(module, _random_state(module), args, kwargs)
        finally:
            self._with_data = False

    def _check(self, together: Any, shares: list[Any], alike: Any, dtype: torch.dtype) -> Any:
        """Return the output on the meta device, for all tokens of the pass, or raise `_NotRows`."""
        whole, structure = pytree.tree_flatten(together)
        parts = [pytree.tree_leaves(share) for share in shares]
        same = pytree.tree_leaves(alike)
        if not any(isinstance(leaf, torch.Tensor) for leaf in whole):
            raise _NotRows
        if any(len(leaves) != len(whole) for leaves in (*parts, same)):
            raise _NotRows
        outputs: list[Any] = []
        for leaf, first, rest, copies in zip(whole, *parts, same, strict=True):
            if not isinstance(leaf, torch.Tensor):
                if not leaf == first == rest == copies:
                    raise _NotRows
                outputs.append(leaf)
                continue
            dim = _token_dim(leaf, first, rest)
            expected = leaf.double()
            scale = float(expected.abs().max())
            spread = float((expected.select(dim, 0) - expected.select(dim, 1)).abs().max())
            if not spread > _LEAST_SPREAD * scale:  # also for what is not a number
                raise _NotRows
            alone = torch.cat((first, rest), dim).double()
            repeated = expected.narrow(dim, 0, 1).expand_as(copies)
            for found, right in ((alone, expected), (copies.double(), repeated)):
                if not float((found - right).abs().max()) <= _TOLERANCE * scale:
                    raise _Mixes
            shape = [self._num_tokens if d == dim else size for d, size in enumerate(leaf.shape)]
            kind = dtype if leaf.is_floating_point() else leaf.dtype
            outputs.append(torch.empty(shape, device="meta", dtype=kind))
        return pytree.tree_unflatten(outputs, structure)

    def _kind(self, module: torch.nn.Module, inputs: Any) -> Any:
        """Return a key that is equal for modules of the same classes, sizes and settings, and inputs."""
        settings = [
            (
                name,
                type(part),
                [item for item in vars(part).items() if isinstance(item[1], int | float | str)],
            )
            for name, part in module.named_modules()
        ]
        shapes = [(name, tuple(tensor.shape)) for name, tensor in module.named_parameters()]
        return repr((settings, shapes, [tuple(tensor.shape) for tensor in _tensors(inputs)]))


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _token_dim(whole: torch.Tensor, first: torch.Tensor, rest: torch.Tensor) -> int:
    """Return the one dimension that counts the tokens of a share, or raise `_NotRows`."""
    sizes = list(zip(whole.shape, first.shape, rest.shape, strict=True))
    dims = [dim for dim, size in enumerate(sizes) if size == (_NUM_ROWS, 1, _NUM_ROWS - 1)]
    if len(dims) != 1 or any(len(set(size)) > 1 for dim, size in enumerate(sizes) if dim != dims[0]):
        raise _NotRows
    return dims[0]


def _random_state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return random parameters and buffers of ``module``, on the CPU, in float32.

    They are overlapping views of short vectors: an entry is that of the vector at a weighted sum of its
    indices. Matrices have a standard deviation near 1 / sqrt(fan in).
    """
    generator = torch.Generator().manual_seed(1)
    state = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        strides = range(tensor.dim(), 0, -1)
        length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
        values = torch.rand(max(length, 1), generator=generator, device="cpu")
        values = (values - 0.5) * (3.5 / tensor.shape[-1] ** 0.5) if tensor.dim() > 1 else values + 0.5
        state[name] = values.as_strided(tensor.shape, tuple(strides))
    return state
