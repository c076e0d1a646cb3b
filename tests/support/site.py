"""The settings of the documentation site, docs/conf.py, and pages as the site has them."""

from __future__ import annotations

import importlib.util
from typing import Any

from tests.support.rooms import ROOT

DOCS = ROOT / "docs"


def settings() -> Any:
    """Load docs/conf.py."""
    spec = importlib.util.spec_from_file_location("conf_of_docs", DOCS / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    return conf


def page(name: str) -> str:
    """Return the text of a page with the tables that are made from the code."""
    return str(settings().with_tables((DOCS / name).read_text(encoding="utf-8")))
