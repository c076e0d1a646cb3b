"""Messages that fail are shown before they are dead, and hidden from those who do not see their group."""

from __future__ import annotations

import threading

import pytest

from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule
from outbox_relay.operations.messages import Row
from tests.integration.inbox.test_consumer_metrics import read
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.logins import Logins
from tests.support.outbox_command import outbox, succeed
from tests.support.waiting import wait_until


class Failing:
    """A listener that fails with messages of key k0 until it is repaired."""

    def __init__(self) -> None:
        self.repaired = threading.Event()

    def __call__(self, conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.key == b"k0" and not self.repaired.is_set():
            raise ValueError(f"number {message.body!r} is not wanted")
        return apply(conn, message)


def retrying(dsn: str, *options: str) -> list[Row]:
    """List what is tried again."""
    found: list[Row] = succeed("dlq", "ls", "--retrying", "--json", "--dsn", dsn, *options).json
    return found


@pytest.mark.feature("H-60")
def test_a_message_that_fails_is_shown_until_it_succeeds(inbox: InboxStage, topic: str) -> None:
    listener, given = Failing(), ("--dsn", inbox.dsn)
    inbox.produce_numbered(topic, 6, keys=2)
    with inbox.consumer(topic, listener, orderly=True, delays=DelaySchedule.of([0, "1h", "1h"])):
        inbox.wait_applied(3)
        wait_until(lambda: [row["attempts"] for row in retrying(inbox.dsn)] == [2], "it has failed twice")
        [row] = retrying(inbox.dsn)
        shown = [row[name] for name in ("consumer_group", "topic", "key", "waiting")]
        assert shown == [inbox.group, topic, "k0", 2]
        assert row["failure"].startswith("ValueError at tests.")
        assert row["due_at"] > row["failed_at"]
        assert succeed("dlq", "ls", "--json", *given).json == [], "it is not dead"
        assert "1 message failed and will be tried again: outbox dlq ls --retrying" in (
            succeed("dlq", "ls", *given).err
        )
        assert succeed("consumers", "show", inbox.group, "--json", *given).json["retrying"] == [row]
        for text in (
            succeed("dlq", "ls", "--retrying", *given).out,
            succeed("consumers", "show", inbox.group, *given).out,
        ):
            assert all(part in text for part in ("NEXT TRY", str(row["id"]), "ValueError at tests."))
        assert succeed("status", "--json", *given).json["consumers"]["retrying"] == {inbox.group: 1}
        lines = [line.split(maxsplit=1) for line in succeed("status", *given).out.splitlines()]
        assert ["retrying", f"{inbox.group} 1: outbox dlq ls --retrying"] in lines
        assert read(inbox)["outbox_consumer_retries", inbox.group, topic] == 1
        listener.repaired.set()
        inbox.conn.execute("UPDATE outbox.inbox_parked SET due_at = now() WHERE state = 'retry'")
        inbox.wait_applied(6)
        wait_until(lambda: not retrying(inbox.dsn), "nothing is tried again")
    assert inbox.by_key() == {"k0": [0, 2, 4], "k1": [1, 3, 5]}
    assert succeed("dlq", "ls", "--retrying", *given).out == "no message is tried again\n"
    assert "retrying" not in succeed("status", *given).out


@pytest.mark.feature("H-60")
def test_what_is_tried_again_is_found_by_the_filters_of_dead_letters(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 4, keys=2)
    hour = DelaySchedule.of(["1h"])
    with inbox.consumer(topic, Failing(), delays=hour), inbox.consumer(topic, group="beside", delays=hour):
        inbox.wait_applied(6)
        wait_until(lambda: len(retrying(inbox.dsn)) == 2, "two have failed")
    found = {
        options: len(retrying(inbox.dsn, *options.split()))
        for options in (
            f"--group {inbox.group}",
            "--group beside",
            f"--topic {topic} --failure ValueError",
            "--failure KeyError",
            "--since 1h",
            "--until 1h",
            "--limit 1",
        )
    }
    assert list(found.values()) == [2, 0, 2, 0, 2, 0, 1], found
    unknown = outbox("dlq", "ls", "--retrying", "--group", "nobody", "--dsn", inbox.dsn)
    assert (unknown.code, "nobody" in unknown.err) == (1, True)


@pytest.mark.feature("H-60")
def test_what_a_bound_group_tries_again_is_hidden_from_other_consumers(
    inbox: InboxStage, topic: str, logins: Logins
) -> None:
    inbox.produce_numbered(topic, 2, keys=2)
    hour = DelaySchedule.of(["1h"])
    with (
        inbox.consumer(topic, Failing(), delays=hour),
        inbox.consumer(topic, Failing(), group="innocent", delays=hour),
    ):
        inbox.wait_applied(2)
        wait_until(lambda: len(retrying(inbox.dsn)) == 2, "each group has failed with one")
    owner = logins.make("outbox_consumer")
    succeed("consumers", "bind", inbox.group, logins.newest, "--dsn", inbox.dsn)
    stranger = logins.make("outbox_consumer")
    seen = {
        name: [row["consumer_group"] for row in retrying(dsn)]
        for name, dsn in (
            ("stranger", stranger),
            ("owner", owner),
            ("operator", logins.make("outbox_operator")),
            ("reader", logins.make("outbox_reader")),
        )
    }
    both = sorted([inbox.group, "innocent"])
    assert {name: sorted(groups) for name, groups in seen.items()} == {
        "stranger": ["innocent"],
        "owner": both,
        "operator": both,
        "reader": both,
    }
    refused = outbox("consumers", "show", inbox.group, "--dsn", stranger)
    assert (refused.code, "ValueError" in refused.out) == (1, False)
