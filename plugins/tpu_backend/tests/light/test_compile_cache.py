"""Which folder keeps the compiled graphs: one for each set of compilers, flags and model."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from core_engine_tpu.compile_cache import CompileCache, choose_cache_folder, versioned_folder

from core_engine.testing.fake_context import fake_model_config

MODEL = fake_model_config(directory="/models/m")
VERSIONS = {"torch": "2.9.1", "torch_xla": "2.9.0", "libtpu": "0.0.21", "jax": "0.7.1"}


def test_every_compiler_flag_and_model_has_a_folder_of_its_own(tmp_path: Path) -> None:
    folders = {
        versioned_folder(tmp_path, VERSIONS, {}, MODEL),
        *(versioned_folder(tmp_path, {**VERSIONS, name: "9"}, {}, MODEL) for name in VERSIONS),
        versioned_folder(tmp_path, VERSIONS, {"XLA_FLAGS": "--a"}, MODEL),
        versioned_folder(tmp_path, VERSIONS, {"LIBTPU_INIT_ARGS": "--a"}, MODEL),
        versioned_folder(tmp_path, VERSIONS, {}, replace(MODEL, directory="/models/n")),
    }
    assert len(folders) == len(VERSIONS) + 4
    assert versioned_folder(tmp_path, VERSIONS, {"HOME": "/x"}, MODEL) in folders


def test_on_a_tpu_it_is_on_by_default_in_the_users_cache(tmp_path: Path) -> None:
    variables = {"XDG_CACHE_HOME": str(tmp_path)}
    folder = choose_cache_folder("auto", MODEL, is_tpu=True, environment=variables)
    assert folder is not None
    assert folder.is_dir()
    assert folder.parent == tmp_path / "core-engine" / "xla"


@pytest.mark.parametrize(("option", "is_tpu"), [("auto", False), ("off", True), ("OFF", True), ("", True)])
def test_off_and_the_host_keep_nothing(option: str, is_tpu: bool) -> None:
    assert choose_cache_folder(option, MODEL, is_tpu=is_tpu, environment={}) is None


def test_graphs_of_several_devices_have_a_folder_of_their_own(tmp_path: Path) -> None:
    folders = {
        choose_cache_folder(str(tmp_path), MODEL, is_tpu=True, num_devices=count, environment={})
        for count in (1, 2, 4)
    }
    assert len(folders) == 3


def test_a_folder_is_taken_on_the_host_too(tmp_path: Path) -> None:
    folder = choose_cache_folder(str(tmp_path / "a" / "b"), MODEL, is_tpu=False, environment={})
    assert folder is not None
    assert folder.parent == tmp_path / "a" / "b"


def test_a_folder_that_cannot_be_made_is_told_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert choose_cache_folder(str(tmp_path / "file"), MODEL, is_tpu=True, environment={}) is None
    assert "no compile cache" in caplog.text


def test_what_was_written_over_is_a_warning_with_the_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("1", "2", "3"):
        (tmp_path / name).write_text("old")
        os.utime(tmp_path / name, (1, 1))
    cache = CompileCache(tmp_path)
    with caplog.at_level("INFO", "core_engine"):
        (tmp_path / "4").write_text("new")
        cache.log_use()
        assert caplog.messages == [f"compile cache {tmp_path}: 3 graphs before, 1 compiled now"]
        (tmp_path / "2").write_text("again")
        cache.log_use()
    assert caplog.messages[1:] == [
        f"compile cache {tmp_path}: 4 graphs before, 1 compiled now",
        f"compile cache {tmp_path}: 1 files could not be read; their graphs were compiled and written anew",
    ]
