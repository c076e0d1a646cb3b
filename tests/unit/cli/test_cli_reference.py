"""The pages of the command line are made from the commands, or name options that there are."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from outbox_relay.cli.main import main
from tests.support.command_tree import leaves

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"


@pytest.fixture(scope="module")
def reference() -> str:
    return REFERENCE.read_text(encoding="utf-8")


def test_every_option_states_what_it_is_for() -> None:
    """Where the reference page is made from: docs/reference/commands.md."""
    missing = [
        f"outbox {' '.join(path)} {parameter.opts[0]}"
        for path, command in leaves(main)
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden and not parameter.help
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
