"""Where the local servers and the examples are not installed, as in the container image, `outbox` offers none."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from tests.support.outbox_command import outbox


@pytest.fixture(autouse=True)
def without_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def found(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "outbox_local" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", found)


def test_they_are_not_listed() -> None:
    shown = outbox("--help").out
    assert "On this machine:" not in shown
    assert "  relay " in shown


@pytest.mark.parametrize("command", ["up", "shop", "demo"])
def test_their_names_are_refused_with_the_reason(command: str) -> None:
    ran = outbox(command)
    assert ran.code == 2
    assert f"'{command}' runs servers and examples on a developer's machine" in ran.err


def test_a_near_name_is_one_that_is_here() -> None:
    ran = outbox("demos")
    assert ran.code == 2
    assert "'demo'" not in ran.err
