"""The reference of the command line names every command and every option that there is."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from outbox_relay.cli.main import main
from tests.support.command_tree import leaves

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
SAID_BY_HELP = {"demo"}
"""Commands whose options are left to their --help."""


@pytest.fixture(scope="module")
def reference() -> str:
    return REFERENCE.read_text(encoding="utf-8")


def test_every_command_is_described(reference: str) -> None:
    missing = [" ".join(path) for path, _ in leaves(main) if f"outbox {' '.join(path)}" not in reference]
    assert not missing


def test_every_option_is_described(reference: str) -> None:
    missing = [
        f"outbox {' '.join(path)} {option}"
        for path, command in leaves(main)
        if path[0] not in SAID_BY_HELP
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
        if option.startswith("--") and option != "--help" and option not in reference
    ]
    assert not missing


def test_no_option_is_described_that_does_not_exist(reference: str) -> None:
    known = {
        option
        for _, command in leaves(main)
        for one in command.params
        for option in (*one.opts, *one.secondary_opts)
    } | {"--help"}
    described = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", reference))
    assert described <= known
