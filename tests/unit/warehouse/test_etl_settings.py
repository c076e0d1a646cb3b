"""Every option that all commands of the job have may come from the environment, where no process list shows it."""

from __future__ import annotations

import argparse

import click
import pytest

from outbox_etl.errors import SettingsError
from outbox_etl.main import parser
from outbox_etl.options.option import add
from outbox_etl.options.settings import COMMON_OPTIONS, Settings, from_arguments
from outbox_relay.cli.etl.commands import etl
from outbox_relay.cli.etl.options import SHARED

GIVEN = ("status", "--dsn=postgresql://localhost/shop", "--warehouse=/w")
OWN = {"--dsn": "OUTBOX_DSN", "--warehouse": "OUTBOX_WAREHOUSE"}


def read(*arguments: str) -> Settings:
    return from_arguments(parser().parse_args([*GIVEN, *arguments]))


def test_every_option_has_a_twin_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    options = argparse.ArgumentParser()
    add(options, COMMON_OPTIONS)
    for action in options._actions[1:]:  # (the first is --help)
        [name] = action.option_strings
        twin = OWN.get(name, f"OUTBOX_ETL_{name.removeprefix('--').replace('-', '_').upper()}")
        assert twin in str(action.help), f"the help of {name} does not name {twin}"
        with monkeypatch.context() as patch:
            patch.setenv(twin, "17")
            fresh = argparse.ArgumentParser()
            add(fresh, COMMON_OPTIONS)
            assert str(getattr(fresh.parse_args([]), action.dest)).strip("[]'") == "17", name


def test_pairs_of_the_environment_are_split_at_spaces_and_arguments_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OUTBOX_ETL_CATALOG_OPTION", "credential=a=b  scope=x")
    monkeypatch.setenv("OUTBOX_ETL_SPARK", "spark.executor.memory=4g")
    found = read("--catalog-option=scope=y", "--spark=spark.local.dir=/tmp")
    assert found.catalog_options == {"credential": "a=b", "scope": "y"}
    assert found.spark == {"spark.executor.memory": "4g", "spark.local.dir": "/tmp"}


def test_numbers_of_the_environment_are_checked_like_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_ETL_FETCH_SIZE", "100")
    monkeypatch.setenv("OUTBOX_ETL_SLICE_ROWS", "5000")
    assert (read().fetch_size, read().slice_rows) == (100, 5_000)
    monkeypatch.setenv("OUTBOX_ETL_SLICE_ROWS", "1")
    with pytest.raises(SettingsError, match="--slice-rows 1 is out of range"):
        read()


@pytest.mark.parametrize("command", ["run", "backfill", "marts", "status", "reconcile", "maintain"])
def test_outbox_etl_has_the_same_options_as_the_job(command: str) -> None:
    [commands] = [action.choices for action in parser()._actions if isinstance(action.choices, dict)]
    job = {action.option_strings[-1]: str(action.help) for action in commands[command]._actions}
    ours = {
        option.opts[0]: option for option in etl.commands[command].params if isinstance(option, click.Option)
    }
    assert {*ours, "--help"} == job.keys()
    for name, option in ours.items():
        if name not in SHARED:
            assert job[name].startswith(str(option.help)), name
