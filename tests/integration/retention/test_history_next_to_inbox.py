"""History is dropped next to the inbox of the same database: what a consumer needs of a message is its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from outbox.inbox import ConsumeResult, DelaySchedule
from outbox.inbox.handling import Handled, Handling, ListenerFailedError, handle, park
from outbox.inbox.messages import Delivery, RawRecord, Source, identify
from outbox.inbox.sessions import use_read_committed
from tests.integration.retention.test_without_warehouse import WITHOUT, drop, outcomes
from tests.support.full_partitions import WIDTH, History
from tests.support.inbox_stage import InboxStage, apply
from tests.support.publications import value

NEVER = DelaySchedule.of([])


@pytest.fixture
def history(database: str) -> Iterator[History]:
    with closing(History(database)) as history:
        history.conn.execute("UPDATE outbox.lane SET owner = NULL, epoch = 0, system_identifier = NULL")
        history.conn.execute("DELETE FROM outbox.lease")
        yield history


def delivered(history: History, id_: int) -> Delivery:
    """A message of the outbox as Kafka delivers it to a consumer of the same database."""
    row = history.conn.execute(
        "SELECT message_id::text, (date_part('epoch', born_at) * 1000)::bigint, key, body "
        "FROM outbox.message WHERE id = %s",
        [id_],
    ).fetchone()
    assert row is not None
    headers = (("outbox-id", row[0].encode()), ("outbox-born-at", str(row[1]).encode()))
    return identify(Source(1, "c/t"), RawRecord("t", 0, id_, row[2], row[3], headers, row[1]), orderly=False)


def test_what_was_consumed_stays_consumed_and_a_dead_letter_keeps_its_message(
    history: History, bootstrap_servers: str
) -> None:
    for number in range(3):
        history.fill(number)
    with closing(InboxStage(history.dsn, bootstrap_servers)) as inbox:
        inbox.conn.execute("INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t')")
        taken, dead, late = (delivered(history, id_) for id_ in (1, 2, 3))
        inbox.conn.execute("SELECT outbox.ensure_inbox_partition(%s)", [taken.born_on])
        with psycopg.connect(history.dsn, application_name="outbox consumer") as conn:
            use_read_committed(conn)
            applying = Handling(1, apply, NEVER)
            assert handle(conn, applying, taken) is Handled.APPLIED
            failing = Handling(1, lambda *_: ConsumeResult.RECONSUME_LATER, NEVER)
            with pytest.raises(ListenerFailedError) as failed:
                handle(conn, failing, dead)
            assert park(conn, failing, dead, failed.value.failure, None) is Handled.DEAD
            kept = inbox.conn.execute("SELECT * FROM outbox.inbox_parked").fetchall()
            assert len(kept) == 1
            assert outcomes(drop(history, *WITHOUT))[:2] == ["dropped", "dropped"]
            assert value(history.conn, "SELECT min(id) FROM outbox.message") == 2 * WIDTH + 1
            assert inbox.conn.execute("SELECT * FROM outbox.inbox_parked").fetchall() == kept
            assert handle(conn, applying, taken) is Handled.REFUSED, (
                "it comes again, and has no second effect"
            )
            assert handle(conn, applying, late) is Handled.APPLIED, "it was published, and comes late"
        assert sorted(map(str, inbox.applied("message_id"))) == sorted(
            [str(taken.message.message_id), str(late.message.message_id)]
        )
