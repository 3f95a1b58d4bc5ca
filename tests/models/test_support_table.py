"""docs/reference/models.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import transformers

from core_engine.testing.divided_check import WRONG, check_divided
from core_engine.testing.model_check import TypeState, check_type, needs_decoder

TABLE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"
#: One of each kind: plain, windows, shared caches, experts, latent attention, learned positions, refusals.
SAMPLE = (
    "llama",
    "ministral",
    "gemma3n_text",
    "mixtral",
    "deepseek_v2",
    "jetmoe",
    "phimoe",
    "opt",
    "starcoder2",
    "bloom",
    "lfm2",
    "doge",
)


def rows() -> dict[str, tuple[str, str, str]]:
    row = r"^\| `(\S+)` \| (\w+) \| (.*) \| (.*) \|$"
    found = re.findall(row, TABLE.read_text(encoding="utf-8"), re.MULTILINE)
    return {model_type: (state, detail, divided) for model_type, state, detail, divided in found}


def test_no_type_gives_a_wrong_answer_or_is_left_untested() -> None:
    assert {state for state, _, _ in rows().values()} == {TypeState.WORKS, TypeState.REFUSED}
    assert all(bool(divided) == (state == TypeState.WORKS) for state, _, divided in rows().values())
    assert WRONG not in {divided for _, _, divided in rows().values()}


def test_the_table_lists_every_type_of_the_version_that_it_names() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    [version] = re.findall(r"Checked with transformers (\S+):", TABLE.read_text(encoding="utf-8"))
    if version != transformers.__version__:
        pytest.skip(f"the table was made with transformers {version}")

    assert list(rows()) == list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


@pytest.mark.parametrize(
    "model_type", ["bert", "bert-generation", "electra", "ernie", "roc_bert", "gpt_neox", "llama"]
)
def test_a_type_that_works_as_decoder_only_says_so(model_type: str) -> None:
    _, detail, _ = rows()[model_type]
    assert ("is_decoder=true" in detail) == needs_decoder(model_type)


@pytest.mark.parametrize("model_type", SAMPLE)
def test_a_sample_of_the_table_holds(model_type: str, tmp_path: Path) -> None:
    result = check_type(model_type, tmp_path, num_tokens=4)

    state, _, divided = rows()[model_type]
    assert result.state == state
    if state == TypeState.WORKS:
        # Another version of transformers may divide another share.
        assert ("%" in check_divided(tmp_path)) == ("%" in divided)
