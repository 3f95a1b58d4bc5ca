"""Weights that are split over several files, with an index that says which files there must be."""

from __future__ import annotations

from pathlib import Path

from core_engine._text import error_line
from core_engine.errors import ModelLoadError
from core_engine.models.json_file import read_json

__all__ = ["check_shards"]

#: The file with all weights, by kind; the index of its shards is named after it.
_WHOLE = {"safetensors": "model.safetensors", "pickle": "pytorch_model.bin"}
_MOST_NAMES = 5


def check_shards(directory: Path, kind: str) -> list[Path]:
    """Return the files that the index of ``kind`` lists; none without an index, or with all weights in one.

    Raises `ModelLoadError` naming those that are not there, and for a damaged index.
    """
    index = directory / f"{_WHOLE[kind]}.index.json"
    if not index.is_file() or (directory / _WHOLE[kind]).is_file():
        return []
    try:
        names = sorted(set(read_json(index)["weight_map"].values()))
        missing = [name for name in names if not (directory / name).is_file()]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelLoadError(f"cannot read {str(index)!r}: {error_line(error)}") from error
    if missing:
        rest = len(missing) - _MOST_NAMES
        raise ModelLoadError(
            f"{len(missing)} of the {len(names)} weight files that {index.name} lists are missing in "
            f"{str(directory)!r}: {', '.join(missing[:_MOST_NAMES])}"
            f"{f' and {rest} more' if rest > 0 else ''}. Download the model again"
        )
    return [directory / name for name in names]
