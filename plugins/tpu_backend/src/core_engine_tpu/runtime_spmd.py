"""Spmd: the part of `XlaRuntime` that divides tensors and programs over the devices of one host.

torch_xla's SPMD mode shows the process one virtual device. A tensor is whole to the program; its
annotation says along which dimension its memory is divided, and XLA's partitioner turns each program
into the same number of programs that exchange what they need.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import fx

from core_engine.plugin import EngineError, UnsupportedFeature

__all__ = ["Spmd", "is_spmd_on"]

F = TypeVar("F", bound=Callable[..., object])

_AXIS = "tensor"
#: How torch_xla writes that a tensor is whole on every device: nothing said, or said so.
_WHOLE = ("", "{replicated}")
_RESTART = "start it in a process of its own (--executor process does)"


def is_spmd_on() -> bool:
    """Say whether this process runs in SPMD mode, which cannot be left again."""
    import torch_xla.runtime

    return bool(torch_xla.runtime.is_spmd())


class Spmd:
    """Turns SPMD mode on and annotates tensors over all devices; one per process.

    Raises `UnsupportedFeature` unless the runtime has exactly ``num_devices``, and `EngineError` where
    the process has used a device without SPMD mode before.
    """

    def __init__(self, num_devices: int) -> None:
        import torch_xla.distributed.spmd
        import torch_xla.runtime

        self._xla: Any = torch_xla
        found: int = torch_xla.runtime.global_runtime_device_count()
        if found != num_devices:
            raise UnsupportedFeature(
                f"tensor_parallel_size {num_devices}: the XLA runtime of this process has {found} devices, "
                "and a program is divided over all of them; if the runtime was started before with another "
                f"number, {_RESTART}"
            )
        if not is_spmd_on():
            if torch_xla._XLAC._xla_get_spmd_config_is_locked():
                raise EngineError(
                    "this process has run a model on one XLA device, and the runtime cannot divide another "
                    f"one over several afterwards: {_RESTART}"
                )
            torch_xla.runtime.use_spmd()
        self._mesh: Any = torch_xla.distributed.spmd.Mesh(list(range(found)), (found,), (_AXIS,))
        self._whole: Any = self._sharding(1, None)

    @staticmethod
    def quiet_compiler() -> None:
        """Keep XLA from warning, for every program, that its partitioner has a successor.

        Takes effect only before torch_xla is imported; ``TF_CPP_MIN_LOG_LEVEL`` as set by the user wins.
        """
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

    def divide(self, tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
        """Divide ``tensor`` along ``dim``, or hold it whole on every device (None); returns it.

        A tensor that was just uploaded still lies on the host, and each device gets its part only. Of a
        tensor that no program has computed yet each device computes its part only.
        """
        self._xla._XLAC._xla_mark_sharding(tensor, self._sharding(tensor.dim(), dim))
        return tensor

    def compile(self, fn: F) -> F:
        """Return ``fn`` as programs that return whole tensors and keep the division of what they update.

        The stock way to write a divided tensor back (``copy_``) leaves an annotation to be executed
        before the next program, as a copy of the whole tensor. Here a program returns what it updated,
        and the new memory takes the place of the old.
        """
        from torch._dynamo.backends.common import aot_autograd

        def build(graph: fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
            return _Program(graph, self)

        backend = aot_autograd(fw_compiler=build, keep_inference_input_mutations=True)
        return torch.compile(fn, backend=backend, fullgraph=True, dynamic=False)  # type: ignore[return-value]

    def sharding_like(self, tensor: torch.Tensor) -> Any:
        """Return the annotation of ``tensor``."""
        return self._xla._XLAC._get_xla_op_sharding(tensor) or self._whole

    def is_divided(self, tensor: torch.Tensor) -> bool:
        """Say whether ``tensor`` is divided along some dimension."""
        return self._xla._XLAC._get_xla_sharding_spec(tensor) not in _WHOLE

    def annotation(self, sharding: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return a function that annotates a result; each is a node of a graph, so each is an own object."""

        def annotate(tensor: torch.Tensor) -> torch.Tensor:
            self._xla._XLAC._xla_mark_sharding(tensor, sharding)
            return tensor

        return annotate

    @property
    def whole(self) -> Any:
        """The annotation of a tensor that every device holds whole."""
        return self._whole

    def extract(self, graph: fx.GraphModule, args: tuple[Any, ...]) -> Callable[..., Any]:
        """Compile a graph by torch_xla's bridge for arguments like ``args``."""
        import torch_xla._dynamo.dynamo_bridge

        self._rename(args)
        compiled: Callable[..., Any] = torch_xla._dynamo.dynamo_bridge.extract_compiled_graph(graph, args)
        return compiled

    def replace(self, tensor: torch.Tensor, new: torch.Tensor) -> None:
        """Let ``tensor`` be ``new``'s memory."""
        self._xla._XLAC._replace_xla_tensor(tensor, new)

    def _rename(self, args: tuple[Any, ...]) -> None:
        """Let each tensor bear the name under which the next trace meets its memory.

        The bridge finds a graph's arguments by the tensors' names. Over several devices a trace leaves a
        new name on what it has read: another graph of the same tensor would take its memory for a constant
        and go on reading it, whatever it is called with.
        """
        for arg in args:
            if isinstance(arg, torch.Tensor):
                _, (renamed,) = self._xla._XLAC._get_tensors_xla_device_data_node([arg])
                self.replace(arg, renamed)

    def _sharding(self, num_dims: int, dim: int | None) -> Any:
        spec = tuple(_AXIS if index == dim else None for index in range(num_dims))
        return self._mesh.get_op_sharding(spec)


class _Program:
    """One graph: compiled at its first call, when the annotations of its arguments are known."""

    #: Tells aot_autograd that the arguments come as one list.
    _boxed_call = True

    def __init__(self, module: fx.GraphModule, spmd: Spmd) -> None:
        self._module = module
        self._spmd = spmd
        self._updated = _take_updates(module.graph)
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, arguments: list[Any]) -> list[Any]:
        args = tuple(arguments)
        if self._compiled is None:
            self._annotate_results(args)
            self._compiled = self._spmd.extract(self._module, args)
        results = self._compiled(*args)
        results = list(results) if isinstance(results, list | tuple) else [results]
        for index, new in zip(self._updated, results, strict=False):
            self._spmd.replace(args[index], new)
        return results[len(self._updated) :]

    def _annotate_results(self, args: tuple[Any, ...]) -> None:
        if not any(isinstance(arg, torch.Tensor) and self._spmd.is_divided(arg) for arg in args):
            return  # nothing to divide: every device computes everything
        graph = self._module.graph
        output = graph.output_node()
        shardings = [self._spmd.sharding_like(args[index]) for index in self._updated]
        annotated = []
        with graph.inserting_before(output):
            for place, value in enumerate(output.args[0]):  # type: ignore[arg-type]
                if not isinstance(value, fx.Node) or value.op == "placeholder":
                    annotated.append(value)
                    continue
                sharding = shardings[place] if place < len(shardings) else self._spmd.whole
                annotated.append(graph.call_function(self._spmd.annotation(sharding), (value,)))
        output.args = (tuple(annotated),)
        self._module.recompile()


def _take_updates(graph: fx.Graph) -> list[int]:
    """Turn the final ``copy_`` of each updated argument into a result, before the others.

    Returns which arguments the first results are for.
    """
    _take_copies_off(graph)
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    output = graph.output_node()
    indices, values = [], []
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.ops.aten.copy_.default:
            continue
        target, value = node.args
        while target.op != "placeholder":  # the argument comes through the operation that donates it
            target = target.args[0]
        node.replace_all_uses_with(value)
        graph.erase_node(node)
        indices.append(arguments.index(target))
        values.append(value)
    output.args = ((*values, *output.args[0]),)  # type: ignore[misc]
    return indices


def _take_copies_off(graph: fx.Graph) -> None:
    """Let what overwrites a whole tensor stand for it: torch_xla would write into the tensor itself."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is torch.ops.aten.copy.default:
            target, source = (argument.meta["val"] for argument in node.args[:2])
            if target.shape == source.shape and target.dtype == source.dtype:
                node.replace_all_uses_with(node.args[1])
                graph.erase_node(node)
