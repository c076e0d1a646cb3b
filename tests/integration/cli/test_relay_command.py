"""`outbox relay ls` and `outbox relay drain`: which relay leads, and giving its lanes to a standby."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from outbox_relay.operations.relays import Drain, everything
from outbox_relay.publisher.lease import VERSION
from tests.support.kafka_records import compare, read_topic
from tests.support.lanes import take
from tests.support.locks import holding
from tests.support.logins import Logins
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, connect, insert_numbered, numbered, wait_published
from tests.support.relay_thread import RelayThread
from tests.support.waiting import wait_until

LOW, HIGH = [0, 1, 2, 3], [4, 5, 6, 7]


@contextmanager
def leases(database: str, **lanes: list[int]) -> Iterator[None]:
    """Have relays of these names with these lanes, each with a session of its own."""
    with ExitStack() as stack:
        for name, owned in lanes.items():
            take(stack.enter_context(connect(database)), name.replace("_", ":"), 60, owned)
        yield


def listed(database: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = succeed("relay", "ls", "--json", OUTBOX_DSN=database).json
    return found


def running(database: str) -> dict[str, list[int]]:
    """The lanes of each relay that lives, by name."""
    return {
        each["owner"]: each["lanes"]
        for each in listed(database)
        if each["condition"] not in {"session gone", "lease ended"}
    }


def refusal(database: str, *arguments: str) -> str:
    ran = outbox("relay", "drain", *arguments, OUTBOX_DSN=database)
    assert ran.code == 1, ran.out
    return ran.err


def test_relays_are_listed_with_lanes_version_and_lease(database: str, conn: Connection) -> None:
    assert succeed("relay", "ls", OUTBOX_DSN=database).out == "no relay runs; start one: outbox relay run\n"
    with leases(database, db7_1_a=LOW, db8_2_b=[]):
        out = succeed("relay", "ls", OUTBOX_DSN=database).out.splitlines()
        assert out[0].split("  ")[0] == "RELAY"
        assert [line.split()[:2] for line in out[1:]] == [["db7:1:a", "leads"], ["db8:2:b", "stands"]]
        assert "0, 1, 2, 3" in out[1]
        first, second = listed(database)
    assert (first["epoch"], first["version"], first["lanes"]) == (1, VERSION, LOW)
    assert (first["condition"], first["shard"]) == ("leads", "1/1")
    assert 50 < first["lease_seconds"] <= 60
    assert (second["condition"], second["is_draining"]) == ("stands by", False)
    wait_until(lambda: listed(database)[0]["condition"] == "session gone", "its session is gone")
    conn.execute("UPDATE outbox.lease SET leased_until = clock_timestamp(), backend_pid = pg_backend_pid()")
    with connect(database) as other:
        other.execute("UPDATE outbox.lease SET backend_pid = pg_backend_pid()")
        assert listed(database)[0]["condition"] == "lease ended"


def test_a_drained_relay_gives_its_lanes_to_a_standby_and_takes_them_again(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    def leads(owner: str) -> bool:
        lanes = running(database)
        return len(lanes) == 2 and lanes[owner] == LOW + HIGH

    with RelayThread(database, bootstrap_servers) as first:
        wait_until(lambda: [*running(database).values()] == [LOW + HIGH], "it leads")
        (name,) = running(database)
        with RelayThread(database, bootstrap_servers) as second:
            second.wait_for("standing by")
            (other,) = running(database).keys() - {name}
            insert_numbered(conn, topic, 200)
            out = succeed("relay", "drain", name, OUTBOX_DSN=database)
            assert f"{name} has given its lanes back" in out.out
            drained = next(each for each in listed(database) if each["owner"] == name)
            assert (drained["is_draining"], drained["condition"]) == (True, "drained")
            wait_until(lambda: leads(other), "the standby leads")
            assert "again" in succeed("relay", "drain", name, "--undo", OUTBOX_DSN=database).out
            succeed("relay", "drain", other, OUTBOX_DSN=database)
            wait_until(lambda: leads(name), "the first one leads again")
            wait_published(conn)
        assert first.is_running
    found = compare(read_topic(bootstrap_servers, topic), numbered(200))
    assert not found.broken
    assert found.duplicate_records == 0


def test_draining_all_warns_that_nothing_is_published(
    database: str, bootstrap_servers: str, conn: Connection
) -> None:
    with RelayThread(database, bootstrap_servers):
        wait_until(lambda: [*running(database).values()] == [LOW + HIGH], "it has all lanes")
        ran = succeed("relay", "drain", "--all", "--json", OUTBOX_DSN=database)
        assert [each["lanes"] for each in ran.json] == [[]]
        assert "outbox relay drain --all --undo" in ran.err
        assert conn.execute("SELECT count(*) FROM outbox.lane WHERE owner IS NOT NULL").fetchone() == (0,)
        assert not succeed("relay", "drain", "--all", "--undo", OUTBOX_DSN=database).err
        wait_until(lambda: [*running(database).values()] == [LOW + HIGH], "it has all lanes again")


def test_a_name_may_be_its_beginning_where_one_relay_has_it(database: str) -> None:
    with leases(database, db7_1_a=LOW, db7_11_b=HIGH):
        ran = succeed("relay", "drain", "db7:1", "--no-wait", OUTBOX_DSN=database)
        assert ran.out == "db7:1:a is asked to give its lanes back\n"
        assert [each["is_draining"] for each in listed(database)] == [True, False]
        assert "'db7' fits several relays: db7:1:a, db7:11:b; give one whole name" in refusal(database, "db7")
        text = refusal(database, "db9")
        assert "no relay 'db9' runs; running: db7:1:a, db7:11:b" in text
        assert "outbox relay ls" in text


@pytest.mark.parametrize("arguments", [[], ["db7:1", "--all"]])
def test_one_relay_or_all_must_be_named(database: str, arguments: list[str]) -> None:
    ran = outbox("relay", "drain", *arguments, OUTBOX_DSN=database)
    assert (ran.code, "name one relay, or give --all" in ran.err) == (2, True)


def test_without_a_relay_there_is_nothing_to_drain(database: str) -> None:
    assert "no relay runs; start one: outbox relay run" in refusal(database, "--all")


def test_a_relay_that_keeps_its_lanes_is_named_when_the_time_is_over(database: str) -> None:
    with leases(database, db7_1_a=LOW, db8_2_b=HIGH):
        text = refusal(database, "db7:1", "--timeout", "0.2")
    assert "db7:1:a still has lanes 0, 1, 2, 3" in text
    assert "not drained within 0.2 s: db7:1:a has lanes 0, 1, 2, 3" in text
    assert "outbox holds ls" in text


def test_a_session_that_was_opened_after_the_request_is_asked_again(database: str, conn: Connection) -> None:
    with connect(database) as old, connect(database) as new:
        take(old, "db7:1:a", 60, LOW)
        asked = Drain(conn, everything(conn))
        held = take(new, "db7:1:a", 60, LOW)
        assert asked.left() == {"db7:1:a": LOW}
        row = conn.execute("SELECT is_draining FROM outbox.lease WHERE epoch = %s", [held.epoch]).fetchone()
        assert row == (True,)
        held.release(new)
        old.close()
        wait_until(lambda: not asked.left(), "it has given its lanes back")


def test_a_lease_that_another_transaction_holds_is_named_with_its_holder(database: str) -> None:
    with (
        leases(database, db7_1_a=LOW),
        holding(database, "SELECT FROM outbox.lease FOR UPDATE"),
    ):
        text = refusal(database, "db7:1")
    assert "another transaction holds outbox.lease" in text
    assert "pg_terminate_backend" in text


def test_an_operator_may_drain_and_a_reader_may_list(logins: Logins) -> None:
    with leases(logins.dsn, db7_1_a=LOW):
        reader = logins.make("outbox_reader")
        assert [each["owner"] for each in listed(reader)] == ["db7:1:a"]
        assert "permission denied" in refusal(reader, "db7:1", "--no-wait")
        succeed("relay", "drain", "db7:1", "--no-wait", OUTBOX_DSN=logins.make("outbox_operator"))
        assert listed(reader)[0]["is_draining"]
