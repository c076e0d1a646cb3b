"""A demo that cannot have its warehouse says so before it begins."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from rich.console import Console

from outbox.extras import install_line
from outbox_local.demo.warehouse import Warehouse
from outbox_relay.text.errors import OperatorError


def test_without_the_extra_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OperatorError, match=re.escape(install_line("etl"))):
        Warehouse.ready(tmp_path / "flights", Console(quiet=True))
    assert not (tmp_path / "flights").exists()


def test_a_file_is_no_place_for_a_warehouse(tmp_path: Path) -> None:
    (tmp_path / "flights").write_text("mine")
    with pytest.raises(OperatorError, match="is not empty; give a new directory"):
        Warehouse.ready(tmp_path / "flights", Console(quiet=True))
