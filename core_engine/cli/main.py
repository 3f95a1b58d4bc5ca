"""``core-engine``: finds the command, runs it, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from typing import TextIO, cast

from core_engine import __version__
from core_engine._text import one_line, parse_bool
from core_engine.cli.options import LineParser, add_switch
from core_engine.cli.results import Results, ResultsLost, private_results
from core_engine.errors import CoreEngineError, did_you_mean

__all__ = ["COMMANDS", "Command", "main"]

#: Exit codes: the command did its work; what was asked cannot be done; stopped by Ctrl-C; nobody reads on.
EXIT_OK, EXIT_ERROR, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 0, 2, 130, 141


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: its module has ``add_arguments(parser)`` and ``run(args, results) -> int``.

    The module is imported only when its command was called. Results are printed with
    ``file=results``; what is printed otherwise goes to stderr.
    """

    name: str
    help: str
    module: str


COMMANDS = (
    Command("generate", "complete prompts", "core_engine.cli.generate"),
    Command("chat", "talk with a model", "core_engine.cli.chat"),
    Command("bench", "measure throughput and latency", "core_engine.cli.bench"),
    Command("backends", "list the backends and which one is chosen", "core_engine.cli.backends"),
    Command(
        "compile-check",
        "compile a model for devices that are not here, and see what fits",
        "core_engine.cli.compile_check",
    ),
    Command("doctor", "examine the installation and explain the choice", "core_engine.cli.doctor"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Without ``argv`` it is ``sys.argv``, and the process is this command alone: whatever prints after it,
    threads and exit handlers included, does not reach stdout.

    A `CoreEngineError` becomes one line on stderr and exit code 2; ``--debug`` or
    ``CORE_ENGINE_DEBUG=1`` adds the traceback. So does a stdout that cannot be written, except that a
    reader who left is no error. Other exceptions are bugs and are not caught.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if cast("object", sys.stderr) is None:  # closed: print() would write to stdout instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - open until the process ends
    try:
        with private_results(until_exit=argv is None) as results:
            return _run(arguments, results)
    except CoreEngineError as error:
        return _refuse(arguments, one_line(error))
    except ResultsLost as lost:
        if isinstance(lost.__cause__, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        return _refuse(arguments, f"stdout cannot be written: {lost.__cause__}")
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # of stderr
        return EXIT_BROKEN_PIPE


def _refuse(arguments: Sequence[str], message: str) -> int:
    """Print the line that tells the error being handled, after its traceback where that is wanted."""
    if _wants_traceback(arguments):
        traceback.print_exc()
    print(f"core-engine: error: {message}", file=sys.stderr)
    return EXIT_ERROR


def _run(arguments: Sequence[str], results: Results) -> int:
    parser = LineParser(prog="core-engine", description="One LLM inference engine, many accelerators.")
    parser.add_argument("--version", action="version", version=f"core-engine {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    subparsers = {c.name: commands.add_parser(c.name, help=c.help, description=c.help) for c in COMMANDS}
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    command = next((command for command in COMMANDS if command.name == asked), None)
    if command is None:
        if asked is not None:
            near = did_you_mean(asked, subparsers)
            parser.error(f"unknown command {asked!r}.{near} The commands are {', '.join(subparsers)}")
        parser.refuse_unknown(_parse(parser, arguments, results)[1])
        parser.print_help(sys.stderr)
        return EXIT_ERROR
    module = import_module(command.module)
    subparser = subparsers[command.name]
    module.add_arguments(subparser)
    add_switch(subparser, "--debug", help="show the traceback of an error")
    args, unknown = _parse(parser, arguments, results)
    subparser.refuse_unknown(unknown)
    code: int = module.run(args, results)
    return code


def _parse(
    parser: LineParser, arguments: Sequence[str], results: Results
) -> tuple[argparse.Namespace, list[str]]:
    """Parse; a help text or the version, which end the command, are its results."""
    with redirect_stdout(cast("TextIO", results)):
        return parser.parse_known_args(arguments)


def _wants_traceback(arguments: Sequence[str]) -> bool:
    text = os.environ.get("CORE_ENGINE_DEBUG", "")
    try:
        from_variable = bool(text) and parse_bool(text)
    except ValueError:
        from_variable = False
    return "--debug" in arguments or from_variable
