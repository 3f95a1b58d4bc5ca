"""The sampling defaults of a model's authors are checked where they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core_engine.config import ModelConfig
from core_engine.errors import ModelLoadError
from core_engine.models.generation_defaults import read_generation_defaults
from core_engine.testing.fake_context import fake_model_config


def read(directory: Path, text: str) -> dict[str, Any]:
    (directory / "generation_config.json").write_text(text)
    return read_generation_defaults(facts(directory))


def facts(directory: Path) -> ModelConfig:
    return fake_model_config(directory=str(directory))


def test_what_samples_is_taken_and_the_rest_left(tmp_path: Path) -> None:
    content = {"temperature": 0.6, "top_k": None, "do_sample": True, "eos_token_id": 2}

    assert read(tmp_path, json.dumps(content)) == {"temperature": 0.6}


def test_without_the_file_there_are_no_defaults(tmp_path: Path) -> None:
    assert read_generation_defaults(facts(tmp_path)) == {}


@pytest.mark.parametrize(
    "content", [{"temperature": 9}, {"top_k": "all"}, {"top_p": 0.0}, {"repetition_penalty": -1}]
)
def test_a_value_out_of_range_is_named_with_file_and_field(tmp_path: Path, content: dict[str, Any]) -> None:
    [field] = content

    with pytest.raises(ModelLoadError, match=rf"generation_config\.json: {field} must be .* got") as caught:
        read(tmp_path, json.dumps(content))
    assert "--no-use-generation-config" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").mkdir()

    with pytest.raises(ModelLoadError, match=r"cannot read .*generation_config\.json"):
        read_generation_defaults(facts(tmp_path))
