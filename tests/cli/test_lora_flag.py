"""``--lora`` of generate and chat."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Shell
from tiny_adapter import make_adapter

from core_engine.testing.oracle import Oracle

GREEDY = ("--temperature", "0", "--max-tokens", "6", "--ignore-eos")
Run = Callable[..., Shell]


@pytest.fixture
def adapter(tiny_model: Path, tmp_path: Path) -> Path:
    return make_adapter(tmp_path / "adapter", Oracle(tiny_model).model, ("q_proj", "down_proj"))


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_answers_are_computed_with_the_adapter(on_model: Run, adapter: Path, command: str) -> None:
    plain = on_model(command, "--prompt", "hello", *GREEDY).out
    shell = on_model(command, "--prompt", "hello", *GREEDY, "--lora", str(adapter))
    assert shell.code == 0
    assert shell.out != plain


def test_several_prompts(on_model: Run, adapter: Path) -> None:
    prompts = ("--prompt", "hello", "--prompt", "you")
    rows = on_model("generate", *prompts, *GREEDY, "--json").json
    adapted = on_model("generate", *prompts, *GREEDY, "--json", "--lora", str(adapter)).json
    assert all(a["token_ids"] != b["token_ids"] for a, b in zip(rows, adapted, strict=True))


def test_a_wrong_adapter_is_one_line_before_the_engine_starts(on_model: Run, adapter: Path) -> None:
    shell = on_model("generate", "--prompt", "hello", "--lora", "nowhere")
    assert (shell.code, shell.out) == (2, "")
    assert "there is no adapter at 'nowhere'" in shell.err
    config = adapter / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"r": 64}))
    shell = on_model("generate", "--prompt", "hello", "--lora", str(adapter))
    assert shell.code == 2
    assert "start with --max-lora-rank 64" in shell.err
    assert "backend cpu" not in shell.log
