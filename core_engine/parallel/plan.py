"""TensorParallelPlan: what transformers says of a model's division; torch-free.

transformers' plan maps names of modules and parameters, with ``*`` for the numbers in them, to styles.
A style says along which dimension a weight is divided, and what the ranks exchange around the module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core_engine.config import EngineConfig, ModelConfig
from core_engine.errors import UnsupportedFeature

__all__ = ["Division", "TensorParallelPlan"]

#: Output features are divided: the last dimension but one; of a bias its only one.
_BY_OUTPUT = {"colwise": 1, "colwise_gather_output": 1, "colwise_rep": 1, "packed_colwise": 2}
#: Input features are divided, the last dimension; a bias stays whole.
_BY_INPUT = {"rowwise": 1, "rowwise_split_input": 1, "rowwise_rep": 1, "packed_rowwise": 2}
#: Tables are divided by rows (the vocabulary) or by columns.
_BY_TABLE = {"embedding_rowwise": 0, "embedding_colwise": 1}


@dataclass(frozen=True, slots=True)
class Division:
    """How one parameter is divided."""

    dim: int
    #: Matrices that lie one after the other along ``dim`` (gate and up, say); each is divided by itself.
    num_packed: int = 1


class TensorParallelPlan:
    """The plan of one model: styles by name."""

    def __init__(self, styles: Mapping[str, str]) -> None:
        self._styles = dict(styles)

    @classmethod
    def of_model(cls, model: Any, config: EngineConfig, facts: ModelConfig) -> TensorParallelPlan:
        """Return transformers' plan of ``model``, which may lie on the meta device.

        Raises `UnsupportedFeature` where there is none.
        """
        styles = getattr(model, "tp_plan", None)
        if not styles:
            raise UnsupportedFeature(
                f"tensor_parallel_size {config.tensor_parallel_size}: transformers has no tensor-parallel "
                f"plan for {facts.architecture}, so nothing says how its weights may be divided; run it on "
                "one device"
            )
        return cls(styles)

    def style(self, name: str) -> str | None:
        """Return the style that the plan gives to exactly this module or parameter."""
        return self._styles.get(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name))

    def division(self, name: str, num_dims: int) -> Division | None:
        """Return how the parameter ``name`` of ``num_dims`` dimensions is divided, or None if it is not.

        Its own style counts, else that of the module that holds it. A style that is not known here
        divides nothing.
        """
        style = self.style(name) or self.style(name.rpartition(".")[0]) or ""
        if style in _BY_TABLE and num_dims == 2:
            return Division(_BY_TABLE[style])
        if style in _BY_OUTPUT:
            return Division(max(0, num_dims - 2), _BY_OUTPUT[style])
        if style in _BY_INPUT and num_dims >= 2:
            return Division(num_dims - 1, _BY_INPUT[style])
        return None
