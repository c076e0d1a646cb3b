"""The library's public names: few in `outbox`, the others in the module of their subject, all on its reference page."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

import outbox

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "library.md"
MOST = 12
MODULES = (
    "outbox",
    "outbox.checking",
    "outbox.callbacks",
    "outbox.cloudevents",
    "outbox.inbox",
    "outbox.partitioning",
    "outbox.testing",
)
"""Modules whose names the page lists; RocketMQ's names have a page of their own."""


def named_on_the_page() -> set[str]:
    """What the section "Names" of the reference page puts between backticks."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Names\n")[2].partition("\n## ")[0]
    return set(re.findall(r"`([^`]+)`", section))


def test_the_library_has_at_most_12_names() -> None:
    assert len(outbox.__all__) <= MOST, "export it from the module of its subject"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_offers_what_it_lists_and_nothing_else(module: str) -> None:
    found = importlib.import_module(module)
    names = {
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }
    assert names == set(found.__all__)


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_page_has_each_public_name(module: str) -> None:
    missing = set(importlib.import_module(module).__all__) - named_on_the_page()
    assert not missing, f"add them to the section Names of {PAGE.name}"


def test_the_reference_page_has_each_error() -> None:
    errors = importlib.import_module("outbox.errors")
    classes = {
        name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")
    }
    section = PAGE.read_text(encoding="utf-8").partition("\n## Errors\n")[2].partition("\n## ")[0]
    assert classes - set(re.findall(r"`([^`]+)`", section)) == set()
