"""The documentation site: Sphinx reads these pages as they are, and the reference of commands from the code.

`make docs` writes build/docs; a broken link, or a page in no table of contents, fails it.
"""

from __future__ import annotations

import logging
from importlib.metadata import version as installed

project = "Outbox"
copyright = "the maintainers"
version = release = installed("outbox-kafka")

logging.getLogger("alembic").setLevel(logging.WARNING)  # it lists its plug-ins when the commands are imported

extensions = ["myst_parser", "sphinx_click", "sphinxcontrib.mermaid"]
myst_fence_as_directive = ["mermaid"]
exclude_patterns = ["conf.py"]
# Listings leave out what does not matter with an ellipsis, which no lexer of Python takes.
suppress_warnings = ["misc.highlighting_failure"]
myst_heading_anchors = 4

smartquotes = False  # in the help of commands, --body would become a dash

html_theme = "furo"
html_title = f"Outbox {release}"
html_copy_source = False
