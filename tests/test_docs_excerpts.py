"""Code excerpts in the docs are lines of the files that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
FENCE = re.compile(
    r"^ *```python\n *# (?P<path>(?:core_engine|examples|plugins)/\S+\.py)\n(?P<code>.*?)^ *```$", re.M | re.S
)


def excerpts() -> Iterator[tuple[str, str, str]]:
    for page in sorted([*REPOSITORY.glob("docs/**/*.md"), REPOSITORY / "README.md"]):
        if "_build" not in page.parts:
            for match in FENCE.finditer(page.read_text(encoding="utf-8")):
                yield page.relative_to(REPOSITORY).as_posix(), match["path"], match["code"]


@pytest.mark.parametrize(
    ("page", "path", "code"), [pytest.param(*e, id=f"{e[0]}:{e[1]}") for e in excerpts()]
)
def test_excerpt_is_an_ordered_selection_of_source_lines(page: str, path: str, code: str) -> None:
    source = iter([line.strip() for line in (REPOSITORY / path).read_text(encoding="utf-8").splitlines()])
    for line in code.splitlines():
        wanted = line.strip()
        if wanted and wanted != "...":
            assert any(wanted == candidate for candidate in source), (
                f"{page}: {path} has no such line here: {wanted}"
            )


def test_there_are_excerpts_to_check() -> None:
    assert any(page == "docs/explanation/one-request.md" for page, _, _ in excerpts())
