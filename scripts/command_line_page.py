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

`core-engine COMMAND …` and `python -m core_engine COMMAND …` are the same. Results go to stdout, the log
and progress to stderr. The exit code is 0 when the command did its work, 2 when what was asked for cannot
be done (one line on stderr says why), and 130 after Ctrl-C; `backends` and `doctor` give 1 when some plugin
failed but the choice is usable.

Every flag that has a variable can be given through it, and the flag wins; the variable of a switch takes `1`
or `0`.
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
