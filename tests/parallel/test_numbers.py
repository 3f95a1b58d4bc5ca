"""Divided models against transformers' own forward of the whole ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from core_engine.config import EngineConfig
from core_engine.models.config_reader import read_model_config
from core_engine.models.loader import LoadedModel, load_model
from core_engine.testing.model_check import dense_run, random_prompts
from core_engine.testing.oracle import EngineRun, Oracle, compare
from core_engine.testing.thread_ranks import ThreadCommunicator, run_ranks, thread_communicators
from core_engine.testing.tiny_models import make_tiny_config, save_tiny_model


def load_ranks(directory: Path, communicators: Sequence[ThreadCommunicator]) -> list[LoadedModel]:
    config = EngineConfig(model=str(directory), tensor_parallel_size=len(communicators))
    facts = read_model_config(config)
    return [
        load_model(config, facts, dtype="float32", communicator=communicator, progress=False)
        for communicator in communicators
    ]


def divided_run(directory: Path, size: int) -> tuple[EngineRun, list[LoadedModel]]:
    """Load all ranks; the run checks that they answer with the same bits."""
    communicators = thread_communicators(size)
    models = load_ranks(directory, communicators)
    runs = [dense_run(model) for model in models]

    def run(prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        answers = run_ranks(communicators, lambda rank: runs[rank](prompts))
        for answer in answers[1:]:
            assert all(torch.equal(own, first) for own, first in zip(answer, answers[0], strict=True))
        return answers[0]

    return run, models


CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {},
    "mixtral": {},
}


@pytest.mark.parametrize("model_type", CASES)
def test_two_ranks_compute_what_one_computes(model_type: str, tmp_path: Path) -> None:
    save_tiny_model(make_tiny_config(model_type, **CASES[model_type]), tmp_path)
    run, models = divided_run(tmp_path, 2)
    result = compare(Oracle(tmp_path), run, random_prompts())
    assert result.agrees(), result
