"""``core-engine doctor``: what is installed, what would be chosen and why, and what is broken."""

from __future__ import annotations

import argparse
import os

from core_engine.backends.doctor import examine_installation
from core_engine.cli.options import add_backend_choice, add_switch
from core_engine.cli.results import Results
from core_engine.plugin._probe import Probe

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_backend_choice(parser)
    add_switch(parser, "--json", help="print one JSON object")


def run(args: argparse.Namespace, results: Results) -> int:
    """Print the report; exit 0 clean, 1 something is broken, 2 what was asked for is not usable."""
    report = examine_installation(args.backend, os.environ, Probe())
    print(report.json() if args.json else report.text(), file=results)
    return report.exit_code
