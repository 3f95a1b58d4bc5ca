"""A model is named by its directory, its GGUF file or its hub id."""

from __future__ import annotations

from pathlib import Path

import pytest

from core_engine.errors import ModelLoadError, ModelNotFound
from core_engine.models.locate import locate_model, locate_tokenizer


def test_a_directory_is_itself(tmp_path: Path) -> None:
    files = locate_model(str(tmp_path))

    assert (files.directory, files.gguf_file, files.hub_id) == (tmp_path, None, None)


def test_a_gguf_file_is_named_within_its_directory(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()

    files = locate_model(str(tmp_path / "model.gguf"))

    assert (files.directory, files.gguf_file) == (tmp_path, "model.gguf")


def test_a_directory_with_one_gguf_file_and_no_safetensors_means_that_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()

    assert locate_model(str(tmp_path)).gguf_file == "model.gguf"


def test_safetensors_win_over_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    (tmp_path / "model.safetensors").touch()

    assert locate_model(str(tmp_path)).gguf_file is None


def test_several_gguf_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()

    with pytest.raises(ModelLoadError, match=r"a\.gguf, b\.gguf.*give the path"):
        locate_model(str(tmp_path))


def test_a_missing_path_names_the_nearest_neighbour_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "smollm2").mkdir()

    with pytest.raises(ModelNotFound, match="Did you mean 'smollm2'") as caught:
        locate_model(str(tmp_path / "smolm2"))
    assert "\n" not in str(caught.value)


def test_a_missing_folder_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"folder .* does not exist"):
        locate_model(str(tmp_path / "nowhere" / "model"))


def test_another_file_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()

    with pytest.raises(ModelNotFound, match="is a file; give its directory"):
        locate_model(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_said_to_be_empty(name: str) -> None:
    with pytest.raises(ModelNotFound, match="the model's name is empty"):
        locate_model(name)
    with pytest.raises(ModelNotFound, match="the tokenizer's name is empty"):
        locate_tokenizer(name)


@pytest.mark.parametrize("name", ["x" * 5000, "~no-such-user-here/model"])
def test_a_path_that_cannot_be_looked_up_is_not_found(name: str) -> None:
    with pytest.raises(ModelNotFound, match="no model at"):
        locate_model(name)


def test_a_missing_tokenizer_is_looked_for_like_a_model(tmp_path: Path) -> None:
    (tmp_path / "smollm2").mkdir()

    with pytest.raises(ModelNotFound, match=r"no tokenizer at .* Did you mean 'smollm2'"):
        locate_tokenizer(str(tmp_path / "smolm2"))


def test_a_tokenizer_beside_gguf_files_is_itself(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf", "tokenizer.json"):
        (tmp_path / name).touch()

    assert locate_tokenizer(str(tmp_path)).gguf_file is None


def test_a_gguf_file_alone_holds_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()

    assert locate_tokenizer(str(tmp_path)).gguf_file == "a.gguf"


def test_an_unknown_hub_id_says_that_the_cache_was_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    with pytest.raises(ModelNotFound, match=r"local cache \(HF_HUB_OFFLINE is set") as caught:
        locate_model("no-such-org/no-such-model")
    assert "\n" not in str(caught.value)


def test_a_cached_hub_model_is_found_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    commit = "0123456789012345678901234567890123456789"
    repository = tmp_path / "models--org--tiny"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    files = locate_model("org/tiny")

    assert files.directory == snapshot
    assert files.hub_id == "org/tiny"
