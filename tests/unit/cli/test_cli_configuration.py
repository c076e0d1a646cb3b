"""Options from a TOML file: which of two origins wins, what is refused, and what `outbox config` shows of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from outbox_relay.cli.main import main
from outbox_relay.cli.options import Command
from tests.support.command_tree import leaves
from tests.support.outbox_command import outbox, succeed

WriteFile = Callable[[str], str]


@pytest.fixture
def file(tmp_path: Path) -> WriteFile:
    def write(text: str) -> str:
        path = tmp_path / "outbox.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def shown(*command: str, **environment: str) -> dict[str, tuple[str, str]]:
    """Return value and origin of each option."""
    rows = succeed("config", "show", *command, "--json", **environment).json
    return {row["option"]: (row["value"], row["origin"]) for row in rows}


def test_the_environment_comes_before_the_file_and_the_file_before_the_default(file: WriteFile) -> None:
    path = file('log-level = "error"\nlog-format = "json"\n[relay.run]\npage = 2000\nlease = 30\n')
    found = shown("relay", "run", OUTBOX_CONFIG=path, OUTBOX_LOG_FORMAT="text", OUTBOX_RELAY_RUN_LEASE="20")
    assert found["--log-level"] == ("error", f"file {path}")
    assert found["--log-format"] == ("text", "environment OUTBOX_LOG_FORMAT")
    assert found["--lease"] == ("20", "environment OUTBOX_RELAY_RUN_LEASE")
    assert found["--page"] == ("2000", f"file {path}")
    assert found["--poll-max"][1] == "default"


def test_what_is_typed_comes_before_the_file(file: WriteFile) -> None:
    path = file('dsn = "host="\n[status]\nmax-age = "never"\n')
    ran = outbox(
        "status", "--dsn", "postgresql://nobody@127.0.0.1:1/none", "--max-age", "5", OUTBOX_CONFIG=path
    )
    assert ran.code == 1
    assert "127.0.0.1" in ran.err


@pytest.mark.parametrize("way", ["option", "environment"])
def test_a_command_takes_the_table_of_its_name(file: WriteFile, way: str) -> None:
    path = file('dsn = "postgresql://nobody@127.0.0.1:1/none"\n[message.ls]\nlimit = 0\n')
    arguments = ("message", "ls")
    ran = outbox("--config", path, *arguments) if way == "option" else outbox(*arguments, OUTBOX_CONFIG=path)
    assert ran.code == 2
    assert "'--limit': 0 is not in the range" in ran.err


def test_the_file_of_a_relays_databases_holds_its_options_as_well(file: WriteFile) -> None:
    path = file('[databases]\nshop = "postgresql://db1/shop"\n[relay.run]\npage = "many"\n')
    ran = outbox("relay", "run", "--config", path, "--bootstrap-servers", "k1:9092")
    assert ran.code == 2
    assert "--page" in ran.err


def test_no_secret_is_shown(file: WriteFile) -> None:
    path = file(
        'dsn = "postgresql://outbox:geheim@db1/shop"\n'
        '[kafka-config]\n"sasl.password" = "geheim"\n"security.protocol" = "SASL_SSL"\n'
        '[relay.run]\nalarm-webhook = "https://alerts.example.com/hook?token=geheim"\n'
        'retain-dsn = "host=db1 password=geheim"\n'
    )
    ran = succeed("config", "show", "relay", "run", OUTBOX_CONFIG=path)
    assert "geheim" not in ran.out
    assert "sasl.password=***, security.protocol=SASL_SSL" in ran.out
    assert "postgresql://outbox:***@db1/shop" in ran.out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("page = 1", "'page' is not a setting of all commands"),
        ('dns = "x"', "did you mean 'dsn'?"),
        (
            "[relay.run]\npge = 1",
            "'pge', which is not an option of `outbox relay run` (did you mean 'page'?)",
        ),
        ("[relay.rnu]\npage = 1", "[relay.rnu] is not a command (did you mean 'run'?)"),
        ("[relays.run]\npage = 1", "[relays] is not a command (did you mean 'relay'?)"),
        ("[relay]\npage = 1", "`outbox relay` takes no options; expected a table for one of its commands"),
        ("dsn =", "cannot be read"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_what_is_expected(
    file: WriteFile, text: str, reason: str
) -> None:
    ran = outbox("config", "check", OUTBOX_CONFIG=file(text))
    assert ran.code == 2
    assert reason in ran.err


def test_a_command_refuses_a_wrong_key_of_its_own_table_and_of_no_other(file: WriteFile) -> None:
    path = file('bootstrap-servers = "k1:9092"\n[relay.run]\npge = 1\n')
    refused = outbox("relay", "run", OUTBOX_CONFIG=path)
    assert refused.code == 2
    assert "'pge'" in refused.err
    other = outbox("status", OUTBOX_CONFIG=path)
    assert "no database given" in other.err


def test_a_file_that_fits_is_reported_with_its_tables(file: WriteFile) -> None:
    path = file('[databases]\nshop = "x"\n[relay.run]\npage = 1\n[message.ls]\nlimit = 5\n')
    assert "tables of 2 commands" in succeed("config", "check", OUTBOX_CONFIG=path).out


def test_without_a_file_or_a_command_the_error_names_what_is_expected() -> None:
    assert "OUTBOX_CONFIG" in outbox("config", "check").err
    assert "run" in outbox("config", "show", "relay").err
    assert "is not a command" in outbox("config", "show", "relay", "rnu").err


def test_every_command_takes_options_from_the_file() -> None:
    without = [" ".join(path) for path, command in leaves(main) if not isinstance(command, Command)]
    assert not without


def test_only_settings_that_are_known_to_be_harmless_are_shown(tmp_path: Path) -> None:
    hidden = [
        "ssl.key.pem=-----BEGIN PRIVATE KEY-----s3cr3t",
        "sasl.oauthbearer.client.secret=s3cr3t",
        "sasl.oauthbearer.assertion.private.key.passphrase=s3cr3t",
        "sasl.oauthbearer.assertion.private.key.pem=s3cr3t",
        "sasl.oauthbearer.config=principal=x secret_key=s3cr3t",
        "ssl.keystore.password=s3cr3t",
        "a.setting.of.tomorrow=s3cr3t",
    ]
    shown = ["security.protocol=SASL_SSL", "linger.ms=5", "ssl.ca.location=/tls/ca.pem"]
    file = tmp_path / "outbox.toml"
    file.write_text(
        f'dsn = "postgresql://relay:s3cr3t@db/x"\nkafka-config = {json.dumps(hidden + shown)}\n'
        '[etl.run]\nspark = ["spark.hadoop.fs.s3a.secret.key=s3cr3t", "spark.executor.memory=4g"]\n'
        'catalog-option = ["credential=id:s3cr3t"]\n[checker.run]\ncallback-dsn = "host=h password=s3cr3t"\n'
    )
    for command in ("relay run", "etl run", "checker run"):
        for form in ((), ("--json",)):
            ran = succeed("--config", str(file), "config", "show", *command.split(), *form)
            assert "s3cr3t" not in ran.out
    said = succeed("--config", str(file), "config", "show", "relay", "run", "--json").out
    for setting in (*shown, *(f"{each.partition('=')[0]}=***" for each in hidden)):
        assert setting in said
    assert "spark.executor.memory=4g" in succeed("--config", str(file), "config", "show", "etl", "run").out
