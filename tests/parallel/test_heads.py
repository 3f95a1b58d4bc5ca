from __future__ import annotations

import re
from dataclasses import replace

import pytest

from core_engine.errors import ConfigError
from core_engine.parallel.heads import check_heads, possible_sizes
from core_engine.testing.fake_context import fake_engine_config, fake_model_config

CONFIG = fake_engine_config()
MODEL = fake_model_config(architecture="SomeForCausalLM")


def test_sizes_divide_both_kinds_of_heads() -> None:
    assert possible_sizes((32, 8)) == (1, 2, 4, 8)
    assert possible_sizes((9, 3)) == (1, 3)
    assert possible_sizes((8, 1)) == (1,)


def test_heads_that_cannot_be_divided_are_refused_with_the_sizes_that_can() -> None:
    expected = (
        "tensor_parallel_size 2 does not divide the 9 query heads and 3 K/V heads of SomeForCausalLM evenly; "
        "these sizes do: 1, 3"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(expected)}$"):
        check_heads(replace(CONFIG, tensor_parallel_size=2), MODEL, [(9, 3)])
    check_heads(replace(CONFIG, tensor_parallel_size=3), MODEL, [(9, 3)])


def test_the_sizes_divide_the_heads_of_every_layer() -> None:
    config = replace(CONFIG, tensor_parallel_size=4)
    with pytest.raises(ConfigError, match=r"the 8 query heads and 2 K/V heads .* these sizes do: 1, 2$"):
        check_heads(config, MODEL, [(8, 4), (8, 2)])
