"""``core-engine compile-check``: compile a model for devices that are not here, and see what fits."""

from __future__ import annotations

import argparse

from core_engine.cli.engine_flags import add_engine_flags, engine_options, model_of
from core_engine.cli.options import add_option, add_switch
from core_engine.cli.results import Results
from core_engine.config import EngineConfig
from core_engine.errors import ConfigError

__all__ = ["add_arguments", "run"]

#: Exit code when something does not compile or fit.
EXIT_PROBLEM = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options; the engine's count as for a start."""
    add_engine_flags(parser)
    add_option(parser, "--target", help="devices to compile for, by the backend's names, e.g. v6e:1x1")
    add_switch(parser, "--json", help="print one JSON object and nothing else on stdout")


def run(args: argparse.Namespace, results: Results) -> int:
    """Print the graphs and the memory; exit 0 when all compiles and fits, 1 when something does not."""
    if not args.target:
        raise ConfigError("no target given: name the devices to compile for with --target")
    config = EngineConfig(model=model_of(args), **engine_options(args))
    from core_engine.engine.compile_check import check_compilation  # imports what an engine needs

    result = check_compilation(config, args.target)
    print(result.json() if args.json else result.text(), file=results)
    return EXIT_PROBLEM if result.problems else 0
