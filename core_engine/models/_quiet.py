"""Keeps transformers and the hub client from writing to the user's terminal."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["quiet_transformers"]

#: Seconds of loading before a progress bar appears.
_BAR_DELAY_S = 1.0


@contextmanager
def quiet_transformers(*, progress: bool = False) -> Iterator[None]:
    """Silence the log lines and warnings of transformers and the hub client; errors still raise.

    With ``progress`` its loading bar is shown on stderr, for loads that take longer than a second.
    """
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    verbosity, hub_verbosity = logging.get_verbosity(), hub_logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    hub_logging.set_verbosity(logging.CRITICAL)
    previous = logging.set_tqdm_hook(_shown_bar if progress else _hidden_bar)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_tqdm_hook(previous)
        logging.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)


def _shown_bar(factory: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return factory(*args, **{**keywords, "delay": _BAR_DELAY_S, "file": sys.stderr, "leave": False})


def _hidden_bar(factory: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return factory(*args, **{**keywords, "disable": True})
