"""The documentation site: Sphinx reads these pages as they are, commands, metrics and columns from the code.

`make docs` writes build/docs; a broken link, or a page in no table of contents, fails it.
"""

from __future__ import annotations

import logging
import re
from importlib.metadata import version as installed
from typing import Any

from docutils import nodes

from outbox.inbox.metrics import METRICS as CONSUMER
from outbox_etl.warehouse.mart_tables import DAYS, MARTS
from outbox_etl.warehouse.tables import CORE
from outbox_relay.monitoring.catalogue import CHECKER, FIGURES, RELAY

# Until the package is on PyPI, pip can install it from a checkout only, as the pages have it: pip install '.[relay]'.
RELEASED = False

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


def with_install_line(text: str) -> str:
    """Return a page whose lines that install an extra do so from where the package is."""
    return (
        re.sub(r"pip install '\.(\[[a-z,-]+\])'", r"pip install 'outbox-kafka\1'", text) if RELEASED else text
    )


METRICS: dict[str, Any] = {"relay": RELAY, "checker": CHECKER, "database": FIGURES, "consumer": CONSUMER}
TABLES = {table.name: table for table in (*CORE, *MARTS, DAYS)}


def metrics_of(name: str) -> str:
    """Return a table of the metrics of one kind of process."""
    rows = [
        f"| `{name}{'_total' * (one.kind == 'counter')}` | {', '.join(one.labels) or '–'} | {one.text} |"
        for name, one in METRICS[name].items()
    ]
    return "\n".join(["| metric | labels besides | meaning |", "|---|---|---|", *rows])


def columns_of(name: str) -> str:
    """Return a table of the columns of one table of the warehouse."""
    rows = [f"| `{one.name}` | {one.type} | {one.comment} |" for one in TABLES[name].columns]
    return "\n".join(["| column | type | meaning |", "|---|---|---|", *rows])


def with_tables(text: str) -> str:
    """Return a page with tables from the code in place of its blocks `metrics` and `columns`."""
    made = {"metrics": metrics_of, "columns": columns_of}
    block = re.compile(r"^```\{(metrics|columns)\} (\w+)\n```$", re.MULTILINE)
    return block.sub(lambda found: made[found[1]](found[2]), text)


def without_folder(text: str, folder: str) -> str:
    """Return a listing without the folder in which this site is built, which the heads of differences name."""
    return text.replace(f"{folder}/", "")


def setup(app: Any) -> None:
    """Let Sphinx pass pages and listings through the functions above."""

    def read(app: Any, name: str, source: list[str]) -> None:
        source[0] = with_tables(with_install_line(source[0]))

    def listed(app: Any, doctree: nodes.document) -> None:
        for node in doctree.findall(nodes.literal_block):
            text = without_folder(node.astext(), str(app.srcdir))
            if text != node.astext():
                node.rawsource, node.children = text, []
                node.append(nodes.Text(text))

    app.connect("source-read", read)
    app.connect("doctree-read", listed)
