"""The pages that list the options of a backend, from the schema of its light module."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

__all__ = ["BACKENDS", "DocumentedBackend", "options_page"]

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class DocumentedBackend:
    """A backend of this repository, and what its page tells besides the table."""

    name: str
    #: The light module, and the folder that it is imported from.
    module: str
    sources: str
    #: Markdown that ends the introduction.
    remark: str


BACKENDS = (
    DocumentedBackend(
        name="cpu",
        module="core_engine.backends.cpu.plugin",
        sources=".",
        remark="What `threads` does beside busy processes is told in [](../how-to/measure-speed.md).",
    ),
    DocumentedBackend(
        name="cuda",
        module="core_engine_cuda.plugin",
        sources="plugins/cuda_backend/src",
        remark="When to set them is told in [](../how-to/run-on-nvidia-gpus.md), what graphs are for in "
        "[](../explanation/cuda.md).",
    ),
    DocumentedBackend(
        name="tpu",
        module="core_engine_tpu.plugin",
        sources="plugins/tpu_backend/src",
        remark="Which buckets to list is told in [](../how-to/choose-buckets.md), what they are for in "
        "[](../explanation/tpu.md).",
    ),
)


def options_page(backend: DocumentedBackend) -> str:
    """Return the page of one backend. Its light module is imported, which needs none of its software."""
    sys.path.insert(0, str(REPOSITORY / backend.sources))
    rows = ["| Option | Type | Default | Choices | Meaning |", "| --- | --- | --- | --- | --- |"]
    for option in import_module(backend.module).option_schema():
        default = "" if option.default is None else f"`{option.default}`"
        choices = ", ".join(f"`{choice}`" for choice in option.choices)
        meaning = option.help.replace("|", "\\|")
        rows.append(f"| `{option.name}` | `{option.type}` | {default} | {choices} | {meaning} |")
    return "\n".join(
        [
            f"# Options of the {backend.name} backend\n",
            "Given as `--backend-option name=value` in the shell, once per option, and as\n"
            f'`LLM(..., backend_options={{"name": "value"}})` in Python. {backend.remark}\n',
            *rows,
            "",
        ]
    )
