"""The canvas of a picture: matplotlib without a display, its SVG made fit to stand inside a page.

Colours are placeholders in matplotlib and variables of the page's style in the SVG, so that one picture is legible by
day, by night and in print. Names are never read as formulas, and letters stay letters, in the page's own font.
"""

from __future__ import annotations

import io
import itertools
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from outbox_etl.report.text import Markup, cell

WIDTH = 10.0
"""Inches of 72 units; the page gives the true width."""
COLORS = {
    name: f"#0b0e{16 + place:02x}"
    for place, name in enumerate(("ink", "soft", "grid", "c1", "c2", "c3", "c4", "c5", "p50", "p95", "p99"))
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "outbox",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": COLORS["ink"],
    "axes.edgecolor": COLORS["grid"],
    "axes.labelcolor": COLORS["soft"],
    "axes.titlecolor": COLORS["ink"],
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": COLORS["grid"],
    "grid.linewidth": 0.6,
    "xtick.color": COLORS["grid"],
    "ytick.color": COLORS["grid"],
    "xtick.labelcolor": COLORS["soft"],
    "ytick.labelcolor": COLORS["soft"],
    "xtick.minor.visible": False,
    "hatch.linewidth": 0.6,
    "figure.constrained_layout.use": True,
}
_serial = itertools.count(1)


class Sheet:
    """One picture in the making."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        self.svg = Markup("")

    def axes(self) -> Axes:
        """The one diagram of the picture."""
        return self.figure.add_subplot()


@contextmanager
def sheet(title: str, description: str, height: float) -> Iterator[Sheet]:
    """Draw in the block; afterwards `svg` is the picture, with its title and its description for those who hear it."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # A name may have letters that matplotlib's own font lacks; it only measures them, the page draws them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        made = Sheet(Figure(figsize=(WIDTH, height)))
        yield made
        FigureCanvasSVG(made.figure)
        text = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        made.figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    made.svg = _inline(text.getvalue(), title, description)


def _inline(text: str, title: str, description: str) -> Markup:
    """The picture without what only a file of its own needs, its ids not those of another picture."""
    number = next(_serial)
    found = re.search(r'<svg[^>]*?viewBox="([^"]+)"[^>]*>(.*)</svg>', text, re.DOTALL)
    if found is None:
        raise AssertionError("matplotlib writes an svg with a viewBox")
    body = re.sub(r"<metadata>.*?</metadata>", "", found[2], flags=re.DOTALL)
    body = re.sub(r"(\bid=\"|\bhref=\"#|url\(#)", rf"\g<1>g{number}-", body)
    body = re.sub(r"(\d+\.\d{2})\d+", r"\1", body)
    for name, color in COLORS.items():
        body = body.replace(color, f"var(--{name})")
    head = f'viewBox="{found[1]}" role="img" aria-labelledby="t{number} d{number}"'
    said = f'<title id="t{number}">{cell(title)}</title><desc id="d{number}">{cell(description)}</desc>'
    return Markup(f"<svg {head}>{said}{body}</svg>")
