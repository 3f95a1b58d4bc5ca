"""``core-engine doctor``: what is installed, what would be chosen and why, and what is broken."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from core_engine.backends.doctor import ModelReport, examine_installation
from core_engine.cli.engine_flags import add_engine_flags, engine_options, model_of
from core_engine.cli.options import add_switch
from core_engine.cli.results import Results
from core_engine.config import EngineConfig
from core_engine.errors import CoreEngineError
from core_engine.plugin._probe import Probe

if TYPE_CHECKING:
    from core_engine.backends.selection import Selection

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options; the engine's count for the features of MODEL."""
    add_engine_flags(parser)
    add_switch(parser, "--json", help="print one JSON object")


def run(args: argparse.Namespace, results: Results) -> int:
    """Print the report; exit 0 clean, 1 something is broken, 2 what was asked for is not usable."""
    report = examine_installation(args.backend, os.environ, Probe())
    if args.model_argument is not None or args.model is not None:
        config = EngineConfig(model=model_of(args), **engine_options(args))
        report = replace(report, model=_examine_model(config, report.backends.selection))
    print(report.json() if args.json else report.text(), file=results)
    return report.exit_code


def _examine_model(config: EngineConfig, selection: Selection | None) -> ModelReport:
    """Settle the engine of ``config`` as a start does; no device is opened and no weight read."""
    if selection is None:
        return ModelReport(name=config.model, error="no backend is chosen")
    from core_engine.engine.prepare import settle_engine  # reads the model through transformers

    try:
        features = settle_engine(config, selection).features
    except CoreEngineError as error:
        return ModelReport(name=config.model, error=f"{type(error).__name__}: {error}")
    return ModelReport(name=config.model, features=features)
