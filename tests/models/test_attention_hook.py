"""The attention function finds each module's own attention object, also under torch.compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core_engine.models.attention_hook import ATTENTION_NAME, register_attention
from core_engine.testing.dense_attention import attach_dense_attention
from core_engine.testing.model_check import load_float32


def test_only_the_attention_function_is_registered() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    register_attention()

    assert ATTENTION_NAME in AttentionInterface()
    # With a mask function transformers would look for packed sequences, which waits for the device.
    assert ATTENTION_NAME not in AttentionMaskInterface()


# What torch says of itself on Python 3.13.0, and on no other release.
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
def test_the_backbone_compiles_as_one_graph_and_survives_binding_again(make_tiny: Any) -> None:
    model = load_float32(make_tiny("llama"))
    graphs = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    attach_dense_attention(model).lengths = [5]
    ids, positions = torch.tensor([3, 4, 5, 6, 7]), torch.arange(5)
    compiled = torch.compile(model.backbone, fullgraph=True, backend=count)

    with torch.no_grad():
        first = compiled(ids, positions)
        attach_dense_attention(model).lengths = [5]
        second = compiled(ids, positions)
        eager = model.backbone(ids, positions)

    torch.testing.assert_close(first, eager)
    torch.testing.assert_close(second, eager)
    assert len(graphs) == 1
