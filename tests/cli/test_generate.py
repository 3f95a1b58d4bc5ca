"""``core-engine generate`` and its settings, on a tiny random model."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import FORBID_ALL, SMALL, Shell
from tiny_distribution import EXTENSIONS, add_distribution

NOISY_EXTENSION = """
from core_engine.plugin import runner_hookimpl

CORE_ENGINE_API = "0.1"

class Noisy:
    def __init__(self, context):
        pass

    @runner_hookimpl(wrapper=True)
    def execute_model(self, scheduler_output):
        print("a step")
        return (yield)
"""

GREEDY = ("--temperature", "0", "--max-tokens", "6", "--ignore-eos")

Run = Callable[..., Shell]


def test_one_prompt_prints_its_text_and_only_that(on_model: Run) -> None:
    rows = on_model("generate", "--prompt", "hello", *GREEDY, "--json").json
    shell = on_model("generate", "--prompt", "hello", *GREEDY)
    assert shell.code == 0
    assert shell.out == rows[0]["text"] + "\n"
    assert "tokens/s" in shell.err
    assert "backend cpu" in shell.log


def test_the_answer_ends_its_line_before_the_speed_is_told(
    on_model: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where both streams go to one file, the speed does not continue the answer's last line."""
    both = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(both, encoding="utf-8"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(both, encoding="utf-8", write_through=True))
    on_model("generate", "--prompt", "hello", *GREEDY)
    assert "\n6 tokens in " in both.getvalue().decode()


def test_one_token_is_told_in_the_singular(on_model: Run) -> None:
    shell = on_model("generate", "--prompt", "hello", *GREEDY, "--max-tokens", "1")
    assert "1 token in " in shell.err


def test_drafts_are_told_at_the_end(on_model: Run) -> None:
    options = ("--temperature", "0", "--max-tokens", "40", "--ignore-eos", "--num-draft-tokens", "4")
    shell = on_model("generate", "--prompt", "hello", *options)
    assert "drafts accepted" in shell.err


def test_json_is_a_list_of_objects(on_model: Run) -> None:
    shell = on_model("generate", "--prompt", "hello", "--prompt", "you", *GREEDY, "--json")
    assert [row["prompt"] for row in shell.json] == ["hello", "you"]
    for row in shell.json:
        assert len(row["token_ids"]) == 6
        assert row["finish_reason"] == "length"
        assert row["usage"]["completion_tokens"] == 6
        assert row["usage"]["total_tokens"] == row["usage"]["prompt_tokens"] + 6


def test_an_answer_that_ends_with_an_error_is_named_on_stderr(on_model: Run) -> None:
    shell = on_model("generate", "--prompt", "hello", *GREEDY, *FORBID_ALL)
    assert shell.code == 1
    assert shell.out == "\n"
    assert "core-engine: error: the model gave no token" in shell.err

    shell = on_model(
        "generate", "--prompt", "hello", "--prompt", "you", "--n", "2", *GREEDY, *FORBID_ALL, "--json"
    )
    assert shell.code == 1
    assert [row["finish_reason"] for row in shell.json] == ["error"] * 4
    assert all("the model gave no token" in row["error"] for row in shell.json)
    assert "core-engine: error: answer 2.1: the model gave no token" in shell.err


def test_what_an_extension_prints_during_steps_is_no_result(
    on_model: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = {"noisy_extension": NOISY_EXTENSION}
    add_distribution(tmp_path, "noisy", {EXTENSIONS: {"noisy": "noisy_extension:Noisy"}}, modules=modules)
    monkeypatch.syspath_prepend(tmp_path)
    shell = on_model("generate", "--extensions", "noisy", "--prompt", "hello", *GREEDY, "--json")
    assert len(shell.json[0]["token_ids"]) == 6
    assert shell.err.count("a step\n") >= 6


def test_several_prompts_are_printed_with_their_numbers(on_model: Run) -> None:
    out = on_model("generate", "--prompt", "hello", "--prompt", "you", *GREEDY).out
    assert "[1] hello\n" in out
    assert "[2] you\n" in out


def test_a_dash_reads_one_prompt_per_line(on_model: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("first\nsecond\n"))
    rows = on_model("generate", "--prompt", "-", *GREEDY, "--json").json
    assert [row["prompt"] for row in rows] == ["first", "second"]


def test_the_model_may_be_named_by_flag_or_variable(
    shell: Shell, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("generate", *SMALL, "--prompt", "hello", *GREEDY, "--json")
    by_flag = shell(*asked, "--model", str(tiny_model)).json
    monkeypatch.setenv("CORE_ENGINE_MODEL", str(tiny_model))
    assert shell(*asked).json == by_flag


def test_every_sampling_option_is_a_flag(on_model: Run) -> None:
    rows = on_model(
        "generate", "--prompt", "hello", "--temperature", "0.9", "--top-k", "50", "--top-p", "0.9", "--min-p",
        "0.01", "--repetition-penalty", "1.1", "--presence-penalty", "0.1", "--frequency-penalty", "0.1",
        "--seed", "7", "--n", "2", "--max-tokens", "5", "--min-tokens", "2", "--stop", "zzz", "--stop",
        "yyy", "--stop-token-ids", "3", "--ignore-eos", "--logit-bias", "5=-100", "--bad-words", "x",
        "--logprobs", "2", "--prompt-logprobs", "1", "--json",
    ).json  # fmt: skip
    assert [row["index"] for row in rows] == [0, 1]
    assert all(len(candidates) >= 3 or len(candidates) == 2 for row in rows for candidates in row["logprobs"])
    assert rows[0]["prompt_logprobs"][0] is None


def test_a_seed_given_by_variable_repeats_the_tokens_and_the_flag_wins(
    on_model: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("generate", "--prompt", "hello", "--max-tokens", "8", "--ignore-eos", "--json")
    monkeypatch.setenv("CORE_ENGINE_SEED", "11")
    by_variable = on_model(*asked).json[0]["token_ids"]
    assert on_model(*asked).json[0]["token_ids"] == by_variable
    assert on_model(*asked, "--seed", "12").json[0]["token_ids"] != by_variable
    monkeypatch.delenv("CORE_ENGINE_SEED")
    assert on_model(*asked, "--seed", "11").json[0]["token_ids"] == by_variable


def test_the_models_own_sampling_defaults_apply_and_can_be_turned_off(
    shell: Shell, tiny_model: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    (model / "generation_config.json").write_text(json.dumps({"top_k": 1, "temperature": 0.5}))
    asked = (*SMALL, "--prompt", "hello", "--max-tokens", "8", "--ignore-eos", "--json")
    greedy = shell("generate", str(tiny_model), *asked, "--temperature", "0").json
    asked = ("generate", str(model), *asked)
    assert shell(*asked).json[0]["token_ids"] == greedy[0]["token_ids"]
    assert "temperature=0.5, top_k=1" in shell.log
    free = [
        shell(*asked, "--no-use-generation-config", "--seed", str(s)).json[0]["token_ids"] for s in (1, 2)
    ]
    assert free[0] != free[1]


def bad_model(folder: Path, source: Path, name: str, content: bytes) -> str:
    model = shutil.copytree(source, folder / "damaged")
    (model / name).write_bytes(content)
    return str(model)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--dtype", "bfloat61"), "unknown dtype 'bfloat61'"),
        (("--max-model-len", "100000"), "256 positions"),
        (("--max-model-len", "many"), "'many' is not a whole number"),
        (("--kv-cache-bytes", "much"), "not a number of bytes"),
        (("--backend-option", "threads"), "takes name=value"),
        (("--backend-option", "thread=2"), "Did you mean 'threads'"),
        (("--backend-option", "threads=few"), "threads"),
        (("--backend", "cpuu"), "Did you mean 'cpu'"),
        (("--tensor-parallel-size", "3"), "tensor_parallel_size 3"),
        (("--temperature", "-1"), "temperature"),
        (("--top-p", "1.5"), "top_p"),
        (("--n", "0"), "n must be"),
        (("--max-tokens", "0"), "max_tokens"),
        (("--stop-token-ids", "99999"), "99999"),
        (("--logit-bias", "99999=1"), "99999"),
        (("--logit-bias", "5"), "ID=BIAS"),
        (("--logprobs", "5000"), "logprobs"),
        (("--extensions", "nothing"), "nothing"),
        (("--scheduling-policy", "luck"), "luck"),
        (("--executor", "moon"), "moon"),
        (("--block-size", "7"), "block_size 7"),
        (("--unheard-of",), "unknown argument '--unheard-of'"),
        (("--max-model-length", "5"), "Did you mean '--max-model-len'"),
    ],
)
def test_a_wrong_option_costs_one_line(on_model: Run, arguments: tuple[str, ...], said: str) -> None:
    shell = on_model("generate", "--prompt", "hello", *arguments)
    assert shell.code == 2
    assert shell.out == ""
    (line,) = shell.err.splitlines()
    assert line.startswith("core-engine: error: ")
    assert said in line


@pytest.mark.parametrize(
    ("prompt", "said"),
    [("", "is empty"), ("x" * 300, "at most 255 fit into the context of 256")],
)
def test_a_wrong_prompt_costs_one_line(on_model: Run, prompt: str, said: str) -> None:
    shell = on_model("generate", "--prompt", prompt)
    assert (shell.code, shell.out) == (2, "")
    assert said in shell.err.splitlines()[-1]


def test_no_prompt_and_no_model(shell: Shell, on_model: Run) -> None:
    assert "no prompt given" in on_model("generate").err
    assert shell.code == 2
    assert "no model given" in shell("generate", "--prompt", "hello").err
    assert shell.code == 2


def test_two_different_models_are_refused(shell: Shell, tiny_model: Path) -> None:
    shell("generate", str(tiny_model), "--model", "other", "--prompt", "hello")
    assert (shell.code, shell.out) == (2, "")
    assert "two models given" in shell.err


def test_a_missing_model(shell: Shell, tmp_path: Path) -> None:
    shell("generate", str(tmp_path / "nowhere"), "--prompt", "hello", "--backend", "cpu")
    assert (shell.code, shell.out) == (2, "")
    assert "nowhere" in shell.err
    assert len(shell.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"\x10\x00\x00\x00\x00\x00\x00\x00not a header"),
        ("model.safetensors", b""),
        ("config.json", b"{ broken"),
        ("tokenizer.json", b"{ broken"),
        ("generation_config.json", b"{ broken"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(
    shell: Shell, tiny_model: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    model = bad_model(tmp_path, tiny_model, name, content)
    shell("generate", model, *SMALL, "--prompt", "hello")
    assert (shell.code, shell.out) == (2, "")
    assert len(shell.err.splitlines()) == 1
    assert "tokenizer" in shell.err if name == "tokenizer.json" else name in shell.err


def test_a_closed_stdin_has_no_prompts(on_model: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    shell = on_model("generate", "--prompt", "-")
    assert (shell.code, shell.out) == (2, "")
    assert shell.err == "core-engine: error: --prompt - reads the prompts from stdin, which is closed\n"


def test_a_stdin_that_is_no_text_is_one_clear_line(on_model: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8"))
    shell = on_model("generate", "--prompt", "-")
    assert shell.code == 2
    assert shell.err.startswith("core-engine: error: --prompt - cannot read stdin: 'utf-8' codec")
