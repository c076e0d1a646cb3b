"""Wrong values of options and arguments: one line that says what is expected, exit code 2, never a traceback."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from confluent_kafka import KafkaError, KafkaException

from outbox_relay.cli.main import main
from outbox_relay.cli.types import Number, check_brokers
from outbox_relay.database import connections
from outbox_relay.publisher.kafka import KafkaSettingError, new_producer, producer_settings, readable
from tests.support.outbox_command import outbox
from tests.unit.cli.test_cli_options import commands

NOWHERE = "postgresql://u@127.0.0.1:1/x"
NOT_UTF8 = b"o-\xff".decode("utf-8", "surrogateescape")
"""What Python makes of an argument such as $'o-\\xff'."""


def numbers() -> list[tuple[tuple[str, ...], click.Option]]:
    return [
        (path, option)
        for path, command in commands(main)
        for option in command.params
        if isinstance(option, click.Option) and isinstance(option.type, click.types.FloatParamType)
    ]


def test_every_option_that_takes_a_number_refuses_what_is_not_finite() -> None:
    assert [(path, one.name) for path, one in numbers() if not isinstance(one.type, Number)] == []
    assert len(numbers()) >= 6


@pytest.mark.parametrize("value", ["nan", "NaN", "inf", "-inf", "1e999", "abc", "", "٣x"])
def test_a_number_that_is_not_finite_is_refused_with_what_is_expected(value: str) -> None:
    ran = outbox("status", "--watch", value, OUTBOX_DSN=NOWHERE)
    assert ran.code == 2
    assert f"{value!r} is not a number; expected 0.1 to 3600" in ran.err


def test_a_number_out_of_range_is_refused_with_the_range() -> None:
    ran = outbox("relay", "run", "--lease", "0.5", OUTBOX_DSN=NOWHERE, OUTBOX_BOOTSTRAP_SERVERS="h:1")
    assert ran.code == 2
    assert "0.5 is out of range; expected 1 to 300" in ran.err


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [(["--shard", "3/2"], {}), ([], {"OUTBOX_SHARD": "3/2"})],
    ids=["option", "variable"],
)
def test_a_shard_that_does_not_exist_is_refused_with_what_is_expected(
    arguments: list[str], variables: dict[str, str]
) -> None:
    ran = outbox("relay", "run", *arguments, OUTBOX_DSN=NOWHERE, OUTBOX_BOOTSTRAP_SERVERS="h:1", **variables)
    assert ran.code == 2
    assert "--shard" in ran.err
    assert "there is no shard 3 of 2; expected I/N" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["message", "ls", "--key", NOT_UTF8],
        ["message", "show", NOT_UTF8],
        ["tx", "ls", "--group", NOT_UTF8],
        ["relay", "run", "--kafka-config", f"client.id={NOT_UTF8}", "--bootstrap-servers", "h:1"],
        ["tx", "commit", "1", NOT_UTF8, "--reason", "x"],
    ],
)
def test_an_argument_that_is_not_utf_8_is_refused_by_name(arguments: list[str]) -> None:
    ran = outbox(*arguments, OUTBOX_DSN=NOWHERE)
    assert ran.code == 2
    assert "the text is not valid UTF-8" in ran.err


def test_an_environment_twin_that_is_not_utf_8_is_refused_too() -> None:
    ran = outbox("message", "ls", OUTBOX_DSN=NOWHERE, OUTBOX_MESSAGE_LS_KEY=NOT_UTF8)
    assert ran.code == 2
    assert "'--key': the text is not valid UTF-8" in ran.err


@pytest.mark.parametrize("arguments", [["up"], ["env"], ["down"]])
def test_a_directory_that_cannot_be_used_is_an_error_of_one_line(arguments: list[str]) -> None:
    ran = outbox(*arguments, "--state", "/proc/x")
    assert ran.code == 1
    assert ran.err.startswith("Error: ")
    assert "/proc/x" in ran.err


@pytest.mark.parametrize(
    "value", ["garbage", "host:", ":9092", "host:0", "host:65536", "host:9092,", "a b:9092", "http://h:1/x"]
)
def test_a_broker_without_a_host_and_a_port_is_refused_before_anything_waits(value: str) -> None:
    ran = outbox("topic", "create", "orders", "--bootstrap-servers", value, OUTBOX_DSN=NOWHERE)
    assert ran.code == 2
    assert "is not a broker's address; expected HOST:PORT" in ran.err


@pytest.mark.parametrize(
    "value", ["h:9092", "a:1,b:2", "a:1, b:2", "[::1]:9092", "SSL://kafka.example.org:9093", "10.0.0.1:65535"]
)
def test_every_form_of_address_that_the_client_takes_is_accepted(value: str) -> None:
    assert check_brokers(value) == value


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--since", "5m", "--until", "10m"], "as in --since 10m --until 5m"),
        (["--since", "10m", "--until", "10m"], "nothing can be between them"),
        (["--since", "2026-02-01", "--until", "2026-01-01"], "nothing can be between them"),
        (["--since", "1s", "--until", "2020-01-01T00:00Z"], "nothing can be between them"),
    ],
)
@pytest.mark.parametrize("command", [["message", "ls"], ["tx", "ls"]])
def test_a_period_in_which_nothing_can_be_is_refused(
    command: list[str], arguments: list[str], text: str
) -> None:
    ran = outbox(*command, *arguments, OUTBOX_DSN=NOWHERE)
    assert ran.code == 2
    assert text in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["message", "ls", "--since", "yesterday"],
        ["message", "show", "abc"],
        ["tx", "commit", "1", "--reason", ""],
        ["group", "set", "g", "--callback-url", "ftp://x"],
        ["group", "set", "g", "--max-age", "soon"],
        ["history", "drop", "--older-than", "soon"],
    ],
)
def test_a_wrong_value_ends_with_2(arguments: list[str]) -> None:
    assert outbox(*arguments, OUTBOX_DSN=NOWHERE).code == 2


def test_a_connection_string_that_cannot_be_read_ends_with_2() -> None:
    assert outbox("status", "--dsn", "nonsense").code == 2


def test_choices_are_listed_as_the_documentation_writes_them() -> None:
    ran = outbox("message", "ls", "--status", "NOPE", OUTBOX_DSN=NOWHERE)
    assert ran.code == 2
    assert "'NOPE' is not one of UNKNOWN, COMMITTED, PUBLISHED," in ran.err


def test_an_option_is_suggested_only_when_it_is_alike() -> None:
    assert "Did you mean" not in outbox("status", "--yes").err
    assert "Did you mean '--dsn'?" in outbox("status", "--dns", "x").err


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "text"),
    [
        (["message", "show", "abc", "--json"], 2, "usage", "'abc' does not name a message"),
        (["message", "shwo", "--json"], 2, "usage", "Did you mean 'show'?"),
        (["status", "--json"], 1, "failed", "cannot reach"),
    ],
)
def test_under_json_an_error_is_one_line_of_json_on_standard_error(
    arguments: list[str], code: int, kind: str, text: str
) -> None:
    ran = outbox(*arguments, OUTBOX_DSN=NOWHERE)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (code, "", 1)
    error: dict[str, Any] = json.loads(ran.err)
    assert error.keys() == {"error", "kind"}
    assert error["kind"] == kind
    assert text in error["error"]


def test_the_environment_asks_for_errors_in_json_too() -> None:
    assert json.loads(outbox("status", OUTBOX_JSON="1", OUTBOX_DSN=NOWHERE).err)["kind"] == "failed"


def test_errors_of_the_kafka_client_are_shown_as_text() -> None:
    error = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
    assert readable(error) == readable(KafkaException(error)) == "1/1 brokers are down"
    assert readable(TypeError("odd")) == "odd"


def test_a_refused_kafka_setting_names_its_option_and_shows_no_internals() -> None:
    with pytest.raises(KafkaSettingError, match=r"^--kafka-config: .*nosuch") as refused:
        new_producer(producer_settings("h:1", {"nosuch": "1"}))
    assert "KafkaError{" not in str(refused.value)
    with pytest.raises(KafkaSettingError, match=r"request.required.acks=1 .* can be lost with it"):
        producer_settings("h:1", {"request.required.acks": "1"})


def test_help_is_not_cut_off() -> None:
    cut = []
    for path, command in commands(main):
        text = command.get_help(click.Context(command, info_name=path[-1], terminal_width=100))
        if re.search(r"\w\.\.\.", text) or "[default: (" in text:
            cut.append(" ".join(path))
    assert cut == []


def test_a_group_of_commands_shows_what_is_needed_first_first() -> None:
    group = main.get_command(click.Context(main), "group")
    assert isinstance(group, click.Group)
    assert group.list_commands(click.Context(group))[0] == "set"


def test_every_command_stands_under_a_heading_of_the_help() -> None:
    ran = outbox("--help")
    headings = ["On this machine:", "Set up:", "Run:", "Inspect and repair:", "Archive:"]
    assert [line for line in ran.out.splitlines() if line in headings] == headings
    for name in main.list_commands(click.Context(main)):
        assert f"\n  {name} " in ran.out
    for text in ("OUTBOX_DSN", "OUTBOX_BOOTSTRAP_SERVERS", "docs/reference/cli.md"):
        assert text in ran.out


@pytest.mark.parametrize("option", ["--postgres-port", "--kafka-port"])
def test_servers_of_dev_get_no_port_of_root(option: str, tmp_path: Path) -> None:
    ran = outbox("dev", "--state", str(tmp_path / "stack"), option, "80")
    assert ran.code == 2
    assert f"'{option}': 80 is not in the range 1024<=x<=65535" in ran.err
    assert not (tmp_path / "stack").exists()


def test_a_file_given_to_an_option_may_have_any_name(tmp_path: Path) -> None:
    missing = tmp_path / NOT_UTF8
    ran = outbox("env", "--state", str(missing))
    assert ran.code == 1
    assert "no stack was started in" in ran.err


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "postgres+asyncpg", "postgresql+psycopg2"])
def test_a_url_of_sqlalchemy_is_refused_with_what_it_has_too_much(scheme: str) -> None:
    driver = scheme.partition("+")[2]
    with pytest.raises(
        connections.DsnError, match=rf"leave out \+{driver}, which SQLAlchemy's URLs have"
    ) as told:
        connections.parameters(f"{scheme}://user:secret@host/shop")
    assert "secret" not in str(told.value)
