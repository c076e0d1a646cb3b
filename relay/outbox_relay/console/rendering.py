"""Turns values into HTML: every value is escaped by the templates, and shown without control characters."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from outbox_relay.console.failing import link
from outbox_relay.text import formatting

STATIC = {
    "style.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""What is served besides pages, and its type."""
LONGEST_TEXT = 300
"""Characters of a text that are shown in a list; a title has no more."""


def short(value: Any, most: int = LONGEST_TEXT) -> str:
    """Show a value in one line, shortened where it is long."""
    text = formatting.cell(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def clock(value: Any) -> str:
    """Show a time without its date and milliseconds; a list of today needs no more."""
    return formatting.NOTHING if value is None else formatting.moment(value)[11:19]


@cache
def static(name: str) -> bytes:
    """Return a file of STATIC."""
    return resources.files("outbox_relay").joinpath("console", name).read_bytes()


@cache
def version(name: str) -> str:
    """Return what changes with a file's content, so that browsers may keep it."""
    return hashlib.sha256(static(name)).hexdigest()[:12]


@cache
def environment() -> Environment:
    """Return the templates."""
    made = Environment(
        loader=PackageLoader("outbox_relay.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "cell": short,
        "whole": formatting.cell,
        "count": formatting.count,
        "seconds": formatting.seconds,
        "age": lambda value: formatting.seconds(value, units=1),
        "clock": clock,
        "rfc3339": formatting.rfc3339,
        "moment": formatting.cell,
    }
    made.globals |= {"many": formatting.many, "link": link, "version": version, "size": formatting.size}
    return made


def render(template: str, **values: Any) -> str:
    """Return the text of a template."""
    return environment().get_template(template).render(**values)
