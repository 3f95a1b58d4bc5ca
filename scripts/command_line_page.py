"""The reference page of the shell, made from the parsers themselves."""

from __future__ import annotations

import argparse
import os
import re
from importlib import import_module

# A variable's value would stand as a default in the page.
for _name in [name for name in os.environ if name.startswith("CORE_ENGINE_")]:
    del os.environ[_name]

from core_engine.cli.main import COMMANDS  # noqa: E402 - after the environment was cleaned

INTRODUCTION = """# Command line

`core-engine COMMAND …` and `python -m core_engine COMMAND …` are the same. Results go to stdout; the log
and progress go to stderr, and so does whatever backends, extensions and libraries print, at any time.
Characters that stdout's encoding lacks are written as `\\uXXXX`.

| Exit code | Meaning |
| --- | --- |
| 0 | the command did its work |
| 1 | `backends` and `doctor`: some plugin failed, but the choice is usable |
| 1 | `generate` and `chat`: an answer ended with an error, which stderr names; the others are whole |
| 1 | `compile-check`: some graph does not compile, or the model does not fit |
| 1 | any command: a bug, whose traceback is on stderr |
| 2 | what was asked for cannot be done, and one line on stderr says why |
| 130 | stopped by Ctrl-C |
| 141 | the reader of the output left before its end, as `head` does |

`--debug`, which every command takes, or `CORE_ENGINE_DEBUG=1` shows the traceback of an error with exit
code 2 as well.

Every flag that has a variable can be given through it, and the flag wins; the variable of a switch takes `1`
or `0`. The variable of a flag that may be repeated, or that takes several values, holds them all: with a
comma between them, or with a line break for `--prompt`, `--stop` and `--bad-words`, whose texts may contain
commas.
"""


def command_line_page() -> str:
    """Return the page: one section per command, then one per group of flags that commands share."""
    parts = [INTRODUCTION]
    shared: dict[str, str] = {}
    for command in COMMANDS:
        parser = argparse.ArgumentParser(add_help=False)
        import_module(command.module).add_arguments(parser)
        positional, options, *named = parser._action_groups
        parts.append(f"## {command.name}\n\nPurpose: {command.help}.\n")
        parts.append(_table([*positional._group_actions, *options._group_actions]) + "\n")
        for group in named:
            title, table = f"{group.title} flags".capitalize(), _table(group._group_actions)
            if shared.setdefault(title, table) != table:
                raise SystemExit(f"command_line_page: {title!r} differ between commands; name them apart")
            parts.append(f"Takes the [{title.lower()}](#{title.lower().replace(' ', '-')}) too.\n")
    parts += [f"## {title}\n\n{table}\n" for title, table in shared.items()]
    return "\n".join(parts)


def _table(actions: list[argparse.Action]) -> str:
    rows = ["| Flag | Variable | Meaning |", "| --- | --- | --- |"]
    for action in actions:
        help_text = (action.help or "").replace("%%", "%").replace(" (default: )", "")
        variable = re.search(r"\s*\[(CORE_ENGINE_\w+)\]$", help_text)
        meaning = help_text[: variable.start()] if variable else help_text
        names = action.option_strings or [str(action.metavar or action.dest)]
        cells = [", ".join(f"`{name}`" for name in names), f"`{variable[1]}`" if variable else "", meaning]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)
