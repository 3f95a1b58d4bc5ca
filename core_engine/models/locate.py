"""Turns what the user named — a directory, a ``.gguf`` file, a hub id — into files on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core_engine._text import error_line
from core_engine.errors import ModelLoadError, ModelNotFound, did_you_mean

__all__ = ["WEIGHT_PATTERNS", "ModelFiles", "fetch_weights", "locate_model", "locate_tokenizer"]

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
#: Files of a hub repository that are read before the weights.
_SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.py")
#: Files that hold a tokenizer, one of which a tokenizer's directory has.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
#: Weight files by kind.
WEIGHT_PATTERNS = {"safetensors": "*.safetensors", "pickle": "*.bin"}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model's files lie."""

    directory: Path
    #: Name of the GGUF file within ``directory``.
    gguf_file: str | None = None
    #: The hub repository that ``directory`` is a snapshot of.
    hub_id: str | None = None


def locate_model(model: str, revision: str | None = None) -> ModelFiles:
    """Find the files of ``model``; of a hub repository only the small ones are fetched.

    Raises `ModelNotFound` in one line, with the nearest name in the folder where the model was looked
    for, and `ModelLoadError` for a folder with several GGUF files.
    """
    files = _locate(model, revision, "model")
    if files.gguf_file is None and files.hub_id is None:
        return ModelFiles(files.directory, _only_gguf(files.directory))
    return files


def locate_tokenizer(tokenizer: str, revision: str | None = None) -> ModelFiles:
    """Find the files of a tokenizer that is named on its own, as `locate_model` does.

    A GGUF file in a directory is read only where no other file holds a tokenizer.
    """
    files = _locate(tokenizer, revision, "tokenizer")
    if files.gguf_file is not None or any((files.directory / name).is_file() for name in _TOKENIZER_FILES):
        return files
    return ModelFiles(files.directory, _only_gguf(files.directory), files.hub_id)


def _locate(name: str, revision: str | None, what: str) -> ModelFiles:
    if not name.strip():
        raise ModelNotFound(f"the {what}'s name is empty; give a directory, a .gguf file or a hub id")
    try:
        path = Path(name).expanduser()
        is_file, is_dir = path.is_file(), path.is_dir()
    except (OSError, RuntimeError) as error:  # too long, not allowed, or the home of an unknown user
        raise ModelNotFound(f"no {what} at {name[:200]!r}: {error_line(error, 200)}") from error
    if is_file:
        if path.suffix != ".gguf":
            raise ModelNotFound(
                f"{what} {name!r} is a file; give its directory, a .gguf file or a hub id instead"
            )
        return ModelFiles(path.parent, path.name)
    if is_dir:
        return ModelFiles(path)
    if not _may_be_hub_id(name, path):
        raise ModelNotFound(f"no {what} at {name!r}.{_near_name(path)}")
    return ModelFiles(_snapshot(name, revision, _SMALL_FILES, what), hub_id=name)


def fetch_weights(hub_id: str, revision: str | None, kind: str) -> Path:
    """Download the weights of a hub repository and return its snapshot's directory."""
    return _snapshot(hub_id, revision, (*_SMALL_FILES, WEIGHT_PATTERNS[kind]), "model")


def _only_gguf(directory: Path) -> str | None:
    """Return the one GGUF file of a directory without safetensors weights, else None."""
    files = sorted(directory.glob("*.gguf"))
    if not files or next(directory.glob("*.safetensors"), None) is not None:
        return None
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ModelLoadError(
            f"{str(directory)!r} holds {len(files)} GGUF files ({names}); give the path of the one to load"
        )
    return files[0].name


def _may_be_hub_id(model: str, path: Path) -> bool:
    looks_local = path.is_absolute() or model.startswith((".", "~")) or path.suffix == ".gguf"
    in_local_folder = len(path.parts) > 1 and Path(path.parts[0]).is_dir()
    return not looks_local and not in_local_folder and _HUB_ID.fullmatch(model) is not None


def _near_name(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f" The folder {str(path.parent)!r} does not exist."
    return did_you_mean(path.name, names)


def _snapshot(hub_id: str, revision: str | None, patterns: Sequence[str], what: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    try:
        return Path(
            snapshot_download(
                hub_id, revision=revision, allow_patterns=list(patterns), local_files_only=offline
            )
        )
    except Exception as error:  # the hub client raises many kinds; all mean that the files are not to be had
        where = "in the local cache (HF_HUB_OFFLINE is set)" if offline else "on the hub"
        told = error_line(error, 300).removesuffix(".")
        if isinstance(error, LocalEntryNotFoundError):  # no connection; the lines after the first are advice
            told = str(error).partition("\n")[0]
        reason = "" if offline else f": {told}"
        raise ModelNotFound(
            f"no directory {hub_id!r} here and no {what} of that name {where}{reason}."
            f"{_near_name(Path(hub_id))}"
        ) from error
