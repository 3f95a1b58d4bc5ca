"""Checks a checkpoint divided over two ranks against transformers' own forward of the whole."""

from __future__ import annotations

import re
from pathlib import Path

from core_engine.config import EngineConfig
from core_engine.errors import ConfigError
from core_engine.models._quiet import quiet_transformers
from core_engine.models.config_reader import read_model_config
from core_engine.testing.model_check import random_prompts
from core_engine.testing.oracle import Oracle, compare
from core_engine.testing.rank_models import communicators, divided_run, load_ranks

__all__ = ["WRONG", "check_divided"]

#: What `check_divided` returns when the ranks compute something else.
WRONG = "wrong"
_NUM_TOKENS = 4


def check_divided(directory: Path) -> str:
    """Return how much of the model is divided, or why it is refused, or `WRONG`."""
    try:
        with quiet_transformers(), communicators(2, directory) as ranks:
            models = load_ranks(directory, ranks, "float32")
            result = compare(Oracle(directory), divided_run(models), random_prompts(), _NUM_TOKENS)
    except ConfigError as error:
        return _reason(str(error))
    if not result.agrees():
        return WRONG
    heads = read_model_config(EngineConfig(model=str(directory))).num_attention_heads
    is_kept = models[0].layers[0].num_heads == heads
    return f"{models[0].divided_share:.1%}" + (", every rank with all heads" if is_kept else "")


def _reason(message: str) -> str:
    """Return what is particular to the model in a refusal."""
    if "has no tensor-parallel plan" in message:
        return "no plan"
    text = re.sub(r"^tensor_parallel_size \d+:? ", "", message)
    text = text.partition("tensor-parallel plan says: ")[2] or text
    return text.removesuffix("; run it on one device").removesuffix("; run the model on one device")
