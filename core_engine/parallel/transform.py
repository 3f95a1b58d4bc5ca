"""TensorParallel: the layer transform that leaves each rank its share of a model."""

from __future__ import annotations

from typing import Any

import torch

from core_engine.config import EngineConfig, ModelConfig
from core_engine.errors import ConfigError, UnsupportedFeature
from core_engine.models.layer_transforms import LayerTransform
from core_engine.parallel.communicator import Communicator
from core_engine.parallel.layers import (
    GatheredLinear,
    RowLinear,
    column_linear,
    divide_embedding,
    divide_parameter,
    sum_output,
)
from core_engine.parallel.plan import Division, TensorParallelPlan
from core_engine.parallel.share import Share

__all__ = ["TensorParallel"]

#: Linear layers whose outputs are divided → whether the ranks' outputs are joined.
_COLUMN = {"colwise": False, "packed_colwise": False, "colwise_gather_output": True, "colwise_rep": True}
#: Linear layers whose inputs are divided → whether each rank cuts its part from a whole input.
_ROW = {"rowwise": False, "packed_rowwise": False, "rowwise_split_input": True, "rowwise_rep": True}
_VOCABULARY = "embedding_rowwise"
#: Modules whose results are parts of a sum, because parameters inside are divided.
_SUM = frozenset({"moe_tp_experts", "all_reduce"})
#: Modules that every rank runs as they are; what sets these styles apart matters in training only.
_AS_IT_IS = frozenset({"replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj", "local_params"})


class TensorParallel(LayerTransform):
    """Divides a model as transformers' tensor-parallel plan of it says.

    It runs before a backend's own transforms, which meet the rank's sizes. A plain ``torch.nn.Linear``
    exchanges nothing; what does is of a class derived from it or, for tables and experts, from the model's
    own class, and what replaces such a module must exchange as it does.
    """

    name = "tensor parallel"

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    def apply(self, model: torch.nn.Module, config: EngineConfig, facts: ModelConfig) -> int:
        """Divide ``model`` and return how many modules changed.

        Raises `UnsupportedFeature` where there is no plan or it asks for what the engine does not do, and
        `ConfigError` for sizes that the ranks do not divide.
        """
        if config.max_loras:
            raise UnsupportedFeature(
                f"max_loras {config.max_loras} with tensor_parallel_size {config.tensor_parallel_size}: "
                "adapters are served on one device only; leave one of the two at its default"
            )
        plan = TensorParallelPlan.of_model(model, config, facts)
        return _Divider(model, plan, self._communicator, facts.architecture).divide()


class _Divider:
    """Divides one model."""

    def __init__(
        self, model: Any, plan: TensorParallelPlan, communicator: Communicator, architecture: str
    ) -> None:
        self._model = model
        self._plan = plan
        self._communicator = communicator
        self._size = communicator.size
        self._architecture = architecture
        self._table, self._head = model.get_input_embeddings(), model.get_output_embeddings()
        self._is_tied = self._head is not None and self._head.weight is self._table.weight

    def divide(self) -> int:
        modules = dict(self._model.named_modules())
        styles = {name: self._plan.style(name) for name in modules}
        if self._is_tied:
            self._tell_both(modules, styles)
        count = sum(self._divide_module(name, module, styles[name]) for name, module in modules.items())
        if self._is_tied:
            self._model.get_output_embeddings().weight = self._table.weight
        return count

    def _tell_both(self, modules: dict[str, torch.nn.Module], styles: dict[str, str | None]) -> None:
        """Divide both users of a matrix by the vocabulary where the plan divides one of them."""
        names = {id(module): name for name, module in modules.items()}
        table, head = names[id(self._table)], names[id(self._head)]
        if styles[table] == _VOCABULARY or styles[head] in _COLUMN:
            styles.update({table: _VOCABULARY, head: "colwise_gather_output"})

    def _divide_module(self, name: str, module: torch.nn.Module, style: str | None) -> bool:
        if style in _COLUMN or style in _ROW:
            self._divide_linear(name, module, style)
            return True
        if style == _VOCABULARY:
            if not isinstance(module, torch.nn.Embedding):
                raise self._refusal(name, f"has the style {style!r} and is a {type(module).__name__}")
            divide_embedding(module, self._share(module.weight, Division(0)), self._communicator)
            return True
        if style is not None and style not in _SUM and style not in _AS_IT_IS:
            raise self._refusal(name, f"has the style {style!r}")
        is_divided = self._divide_own_parameters(name, module)
        if style in _SUM:
            sum_output(module, self._communicator)
        return is_divided or style in _SUM

    def _divide_linear(self, name: str, module: torch.nn.Module, style: str) -> None:
        if type(module) is not torch.nn.Linear:
            raise self._refusal(name, f"has the style {style!r} and is a {type(module).__name__}")
        parent, _, attribute = name.rpartition(".")
        replacement: torch.nn.Module
        # The plan may not name a head that is tied to what it divides.
        weight = self._plan.division(f"{name}.weight", 2) or Division(0)
        if style in _COLUMN:
            gathers = _COLUMN[style]
            if not gathers:
                self._check_even(name, "output features", module.out_features, weight)
            share = self._share(module.weight, weight)
            bias = None if module.bias is None else self._share(module.bias, Division(0, weight.num_packed))
            if gathers:
                replacement = GatheredLinear(module, share, bias, self._communicator)
            else:
                replacement = column_linear(module, share, bias)
        else:
            self._check_even(name, "input features", module.in_features, weight)
            share = self._share(module.weight, weight)
            replacement = RowLinear(module, share, self._communicator, splits_input=_ROW[style])
        setattr(self._model.get_submodule(parent), attribute, replacement)

    def _divide_own_parameters(self, name: str, module: torch.nn.Module) -> bool:
        divided = False
        for attribute, parameter in list(module.named_parameters(recurse=False)):
            full = f"{name}.{attribute}"
            style = self._plan.style(full)
            if style is None or style in _AS_IT_IS:
                continue
            division = self._plan.division(full, parameter.dim())
            if division is None:
                raise self._refusal(full, f"has the style {style!r}")
            self._check_even(
                full, f"entries of dimension {division.dim}", parameter.shape[division.dim], division
            )
            divide_parameter(module, attribute, self._share(parameter, division))
            divided = True
        return divided

    def _share(self, parameter: torch.Tensor, division: Division) -> Share:
        return Share.of(
            parameter.shape,
            division.dim,
            rank=self._communicator.rank,
            size=self._size,
            num_packed=division.num_packed,
        )

    def _check_even(self, name: str, what: str, number: int, division: Division) -> None:
        if number % (self._size * division.num_packed):
            raise ConfigError(
                f"tensor_parallel_size {self._size} does not divide the {number} {what} of {name} in "
                f"{self._architecture} evenly; choose one that does"
            )

    def _refusal(self, name: str, what: str) -> UnsupportedFeature:
        return UnsupportedFeature(
            f"tensor_parallel_size {self._size}: {name} of {self._architecture} {what} in transformers' "
            "tensor-parallel plan, which the engine does not divide by; run the model on one device"
        )
