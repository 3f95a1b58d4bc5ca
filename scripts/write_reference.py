"""Write the reference pages that are made from the source: hooks, values, settings, errors.

The pages are committed, so that they can be read without a build; ``--check`` fails when one is out
of date. The source is parsed, not imported, but for the shell's parsers and the light modules of backends::

    python scripts/write_reference.py
    python scripts/write_reference.py --check
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from command_line_page import command_line_page
from options_page import BACKENDS, options_page

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "core_engine"
PAGES = REPOSITORY / "docs" / "reference"
NOTICE = "<!-- Written by scripts/write_reference.py from the source; change it there. -->\n"


@dataclass(frozen=True)
class Field:
    """One field of a dataclass, with the ``#:`` comment above it."""

    name: str
    type: str
    default: str
    comment: str


def parse_class(file: str, name: str) -> tuple[ast.ClassDef, str]:
    """Return the syntax tree of a top-level class and the text of its file."""
    text = (PACKAGE / file).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node, text
    raise SystemExit(f"write_reference: {file} has no class {name}")


def prose(text: str | None) -> str:
    """Turn a docstring into Markdown: one kind of backtick, code blocks fenced."""
    cleaned = inspect.cleandoc(text or "").replace("``", "`")
    pieces, code = [], False
    for block in cleaned.split("\n\n"):
        pieces.append(
            f"```python\n{inspect.cleandoc(block)}\n```"
            if code
            else block.removesuffix(":")
            if block.endswith("::")
            else block
        )
        code = block.endswith("::")
    return "\n\n".join(pieces)


def fields(node: ast.ClassDef, text: str) -> Iterator[Field]:
    """Yield the fields of a dataclass in order."""
    lines = text.splitlines()
    for item in node.body:
        if not (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)):
            continue
        comment: list[str] = []
        for line in reversed(lines[: item.lineno - 1]):
            if not line.strip().startswith("#:"):
                break
            comment.insert(0, line.strip().removeprefix("#:").strip())
        default = "" if item.value is None else ast.unparse(item.value)
        default = {"field(default_factory=dict)": "{}"}.get(default, default)
        yield Field(item.target.id, ast.unparse(item.annotation), default, " ".join(comment))


def cell(text: str) -> str:
    """Escape what would break a table cell."""
    return text.replace("``", "`").replace("|", "\\|")


def field_table(node: ast.ClassDef, text: str) -> str:
    """Return a table of a dataclass's fields."""
    rows = ["| Field | Type | Default | Meaning |", "| --- | --- | --- | --- |"]
    for field in fields(node, text):
        default = f"`{cell(field.default)}`" if field.default else "required"
        rows.append(f"| `{field.name}` | `{cell(field.type)}` | {default} | {cell(field.comment)} |")
    return "\n".join(rows)


def values_page(title: str, introduction: str, classes: list[tuple[str, str]]) -> str:
    """Return a page with one section per dataclass or enumeration."""
    parts = [NOTICE, f"# {title}\n", introduction]
    for file, name in classes:
        node, text = parse_class(file, name)
        parts.append(f"\n## {name}\n\n{prose(ast.get_docstring(node))}\n")
        members = [item for item in node.body if isinstance(item, ast.Assign)]
        if any(fields(node, text)):
            parts.append(field_table(node, text))
        elif members:
            values = [ast.unparse(item.value) for item in members]
            parts.append("Values: " + ", ".join(f"`{value}`" for value in values) + ".")
    return "\n".join(parts) + "\n"


def methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    """Return the public methods of a class in order."""
    return [item for item in node.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")]


def required_backend_hooks() -> set[str]:
    """Return REQUIRED_HOOKS of the discovery specification."""
    text = (PACKAGE / "hookspecs/backend.py").read_text(encoding="utf-8")
    match = re.search(r"REQUIRED_HOOKS = frozenset\((.*?)\)\n", text, re.S)
    if match is None:
        raise SystemExit("write_reference: hookspecs/backend.py has no REQUIRED_HOOKS")
    return set(ast.literal_eval(match[1].strip()))


def hook_sections(file: str, name: str, implementer: dict[str, str]) -> str:
    """Return the summary table and one section per hook of a specification class."""
    node, _ = parse_class(file, name)
    rows = ["| Hook | Implemented by | What for |", "| --- | --- | --- |"]
    sections = []
    for method in methods(node):
        documentation = prose(ast.get_docstring(method))
        first = documentation.split("\n\n")[0].replace("\n", " ")
        anchor = f"{name}-{method.name}".lower().replace("_", "-")
        rows.append(f"| [`{method.name}`](#{anchor}) | {implementer[method.name]} | {cell(first)} |")
        returns = f" -> {ast.unparse(method.returns)}" if method.returns else ""
        signature = f"def {method.name}({ast.unparse(method.args)}){returns}"
        sections.append(
            f"({anchor})=\n### {name}.{method.name}\n\n```python\n{signature}\n```\n\n{documentation}\n"
        )
    return "\n".join([f"## {name}\n", prose(ast.get_docstring(node)), "", *rows, "", *sections])


def by_base(api: str, api_file: str, base: str, base_file: str) -> dict[str, str]:
    """Say for each method of an API whether the base gives it, the backend must, or the backend may."""
    given = {method.name for method in methods(parse_class(base_file, base)[0])}

    def implementer(method: ast.FunctionDef) -> str:
        if method.name in given:
            return f"`{base}`, may be overridden"
        required = any(ast.unparse(mark) == "abstractmethod" for mark in method.decorator_list)
        return "the backend" if required else "the backend, optional (`StepModelRunner` does)"

    return {method.name: implementer(method) for method in methods(parse_class(api_file, api)[0])}


def hooks_page() -> str:
    """Return the hook reference."""
    required = required_backend_hooks()
    discovery = {
        method.name: "the backend" if method.name in required else "the backend, optional"
        for method in methods(parse_class("hookspecs/backend.py", "BackendSpec")[0])
    }
    worker = by_base("WorkerApi", "hookspecs/worker.py", "WorkerBase", "worker/worker.py")
    runner = by_base(
        "ModelRunnerApi", "hookspecs/model_runner.py", "ModelRunnerBase", "worker/model_runner.py"
    )
    return "\n".join(
        [
            NOTICE,
            "# Hooks\n",
            "The engine's three contracts with a backend. `BackendSpec` is implemented by the functions of "
            "the light module that the entry point names; `WorkerApi` and `ModelRunnerApi` by the classes "
            "that its `create_worker` and `create_model_runner` return. All hooks are `firstresult`. "
            "The types are described in [](plugin-values.md).\n",
            hook_sections("hookspecs/backend.py", "BackendSpec", discovery),
            hook_sections("hookspecs/worker.py", "WorkerApi", worker),
            hook_sections("hookspecs/model_runner.py", "ModelRunnerApi", runner),
        ]
    )


def errors_page() -> str:
    """Return the tree of errors from its module docstring."""
    text = (PACKAGE / "errors.py").read_text(encoding="utf-8")
    documentation = ast.get_docstring(ast.parse(text)) or ""
    tree = inspect.cleandoc(documentation.partition("::\n")[2])
    return "\n".join(
        [
            NOTICE,
            "# Errors\n",
            "Every error that core-engine raises on purpose. Each message says what was asked, what is "
            "possible, and what to do. All stand in `core_engine.errors`.\n",
            f"```text\n{tree}\n```\n",
        ]
    )


def pages() -> dict[str, str]:
    """Return every generated page by file name."""
    return {
        "hooks.md": hooks_page(),
        "plugin-values.md": values_page(
            "Values of the plugin API",
            "What hooks take and return. All are frozen, and what passes between processes holds no torch "
            "object; new fields come with defaults.",
            [
                ("plugin/_backend_types.py", "BackendInfo"),
                ("plugin/_backend_types.py", "DetectionState"),
                ("plugin/_backend_types.py", "DeviceInfo"),
                ("plugin/_backend_types.py", "Detection"),
                ("plugin/_backend_types.py", "BackendOption"),
                ("plugin/_backend_types.py", "ConfigChange"),
                ("plugin/_backend_types.py", "WorkerPlan"),
                ("plugin/_capabilities.py", "Capabilities"),
                ("plugin/_compile_types.py", "CompiledGraph"),
                ("config.py", "ModelConfig"),
                ("worker/context.py", "WorkerContext"),
                ("worker/context.py", "RunnerContext"),
                ("worker/reports.py", "DeviceReport"),
                ("worker/reports.py", "MemoryInfo"),
                ("worker/reports.py", "LoadReport"),
                ("worker/reports.py", "ProfileReport"),
                ("worker/reports.py", "MemoryBudget"),
                ("worker/reports.py", "CaptureReport"),
                ("worker/reports.py", "ProgramGroup"),
                ("worker/reports.py", "Health"),
                ("kv_cache/specs.py", "KVCacheSpec"),
                ("kv_cache/specs.py", "KVCacheGroup"),
                ("kv_cache/specs.py", "KVCacheConfig"),
                ("scheduler/output.py", "SchedulerOutput"),
                ("scheduler/output.py", "NewRequest"),
                ("worker/output.py", "ModelRunnerOutput"),
                ("worker/output.py", "LogprobRows"),
                ("lora/messages.py", "LoRAAdapter"),
                ("lora/messages.py", "LoRAInfo"),
            ],
        ),
        "configuration.md": values_page(
            "Configuration",
            "The settings of an engine and their defaults. `None` means that the engine decides, and the "
            "start log says what it decided.",
            [("config.py", "EngineConfig")],
        ),
        "sampling-parameters.md": values_page(
            "Sampling parameters",
            "The options of one request. What they do is explained in [](../explanation/sampling.md).",
            [("sampling/params.py", "SamplingParams")],
        ),
        **{f"{backend.name}-options.md": f"{NOTICE}\n{options_page(backend)}" for backend in BACKENDS},
        "errors.md": errors_page(),
        "command-line.md": f"{NOTICE}\n{command_line_page()}",
    }


def main() -> None:
    """Write the pages, or compare them with ``--check``."""
    check = "--check" in sys.argv[1:]
    stale = []
    for name, wanted in pages().items():
        page = PAGES / name
        if not page.exists() or page.read_text(encoding="utf-8") != wanted:
            stale.append(name)
            if not check:
                page.write_text(wanted, encoding="utf-8")
    if check and stale:
        raise SystemExit(f"docs/reference is out of date ({', '.join(stale)}): run `make reference`")
    for name in stale:
        print(f"wrote docs/reference/{name}")


if __name__ == "__main__":
    main()
