"""JSON files of a model, which may be damaged in any way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from core_engine._text import error_line
from core_engine.errors import ModelLoadError

__all__ = ["read_json"]


def read_json(path: Path) -> Any:
    """Return what ``path`` holds. Raises `ModelLoadError` naming the file where that cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"cannot read {str(path)!r}: {error_line(error)}") from error
