"""Where the engine's own lines go: the ``core_engine`` logger, on stderr unless logging is configured."""

from __future__ import annotations

import logging
import os
import sys

__all__ = ["show_log"]


def show_log() -> None:
    """Show the engine's lines on stderr unless some handler is there already.

    The level comes from ``CORE_ENGINE_LOG_LEVEL`` (default INFO).
    """
    logger = logging.getLogger("core_engine")
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    level = os.environ.get("CORE_ENGINE_LOG_LEVEL", "INFO").upper()
    logger.setLevel(level if level in logging.getLevelNamesMapping() else "INFO")
