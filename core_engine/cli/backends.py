"""``core-engine backends``: the installed backends and which one a start would choose."""

from __future__ import annotations

import argparse
import os
import sys

from core_engine._text import one_line
from core_engine.backends.report import report_backends
from core_engine.cli.options import add_backend_choice, add_switch
from core_engine.cli.results import Results
from core_engine.plugin._probe import Probe

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_backend_choice(parser)
    add_switch(parser, "--json", help="print a JSON list of objects, one for each backend")


def run(args: argparse.Namespace, results: Results) -> int:
    """Print the listing; exit 0 clean, 1 some plugin failed, 2 what was asked for is not usable."""
    report = report_backends(args.backend, os.environ, Probe())
    print(report.json() if args.json else report.text(), file=results)
    if report.error is not None:
        print(f"core-engine: error: {one_line(report.error)}", file=sys.stderr)
    elif report.selection is not None:
        for warning in report.selection.warnings:
            print(f"core-engine: warning: {warning}", file=sys.stderr)
    return report.exit_code
