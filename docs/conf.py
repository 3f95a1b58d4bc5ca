"""Sphinx settings; `make docs` builds with every warning an error."""

import re
from pathlib import Path

_SOURCE = (Path(__file__).parents[1] / "core_engine" / "__init__.py").read_text(encoding="utf-8")

project = "core-engine"
author = "The core-engine developers"
copyright = author
release = re.findall(r'^__version__ = "(.+)"$', _SOURCE, re.M)[0]
version = release

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nitpicky = True

html_theme = "furo"
html_title = f"core-engine {release}"
html_show_sourcelink = False
html_show_copyright = False
