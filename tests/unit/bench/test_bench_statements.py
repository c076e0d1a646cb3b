"""The benchmarks' own pieces around other drivers: the library's statements, the pinned jars, Java's properties."""

from __future__ import annotations

from importlib.resources import files

import pytest

from bench.load.sql import filling, inserting
from bench.rocketmq.client import properties
from outbox.operations.rows import load_rows
from outbox.statements import load
from outbox_relay.downloads.jar_list import listed


@pytest.mark.parametrize(("file", "name"), [("send.sql", "send"), ("prepare.sql", "prepare")])
def test_a_message_is_inserted_with_the_columns_that_have_a_value(file: str, name: str) -> None:
    text = inserting(load_rows(file)[name], {"topic": "'t'", "key": ":key"})
    assert "$" not in text
    assert "('t', :key, NULL, NULL, " in " ".join(text.split())


def test_a_column_that_the_statement_does_not_list_is_refused() -> None:
    with pytest.raises(ValueError, match="lists no colour"):
        inserting(load_rows("send.sql")["send"], {"colour": "'red'"})
    with pytest.raises(ValueError, match="no INSERT of a message"):
        inserting("SELECT $1", {"topic": "'t'"})


def test_every_numbered_parameter_needs_a_value() -> None:
    assert filling("SELECT $2, $1, $12", {1: "a", 2: "b", 12: "c"}) == "SELECT b, a, c"
    with pytest.raises(KeyError, match="2"):
        filling("SELECT $1, $2", {1: "a"})


def test_the_decision_of_the_library_takes_four_parameters() -> None:
    text = filling(load("decide.sql")["decide"], {1: "1", 2: "'u'", 3: "'COMMITTED'", 4: "NULL"})
    assert "SET state = 'COMMITTED', remark = NULL" in text
    assert "AND id >= 1 AND id < 5000001 AND" in text


def test_the_jars_of_the_peer_are_pinned_once_each() -> None:
    jars = listed((files("bench.rocketmq") / "jars.txt").read_text())
    names = [jar.file_name for jar in jars]
    assert len(set(names)) == len(names)
    assert {len(jar.sha256) for jar in jars} == {64}
    assert {"rocketmq-broker-5.5.0.jar", "rocketmq-namesrv-5.5.0.jar", "rocketmq-client-5.5.0.jar"} < {*names}


def test_java_reads_a_property_as_it_was() -> None:
    assert properties({"a": "x\\y\nz", "b": "1 = 2"}) == "a=x\\\\y\\nz\nb=1 = 2\n"
