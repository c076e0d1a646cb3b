"""A page that ends early because the producer's queue is full: what is left of it is in front of no progress."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from outbox_relay.publisher.session import Session
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.relay_session import relay_session, turn_until
from tests.support.waiting import wait_until

PUBLISHED = "SELECT count(*) FROM outbox.message_status WHERE status = 'PUBLISHED'"


def published(conn: Connection) -> int:
    row = conn.execute(PUBLISHED).fetchone()
    assert row is not None
    return int(row[0])


def fill_queue_at(session: Session, body: bytes) -> None:
    """Let the local queue have no room for a message, so that its page ends in front of it."""
    producers = session._publisher._producers
    real = producers.of

    def of(name: str, most: int) -> Any:
        producer = real(name, most)

        def produce(topic: str, value: bytes, *rest: Any, **options: Any) -> None:
            if value == body:
                raise BufferError
            producer.produce(topic, value, *rest, **options)

        return SimpleNamespace(produce=produce)

    setattr(producers, "of", of)  # noqa: B010  (mypy knows that a method is not assigned to)
    session._publisher.while_full = lambda seconds: False


def test_a_successor_begins_in_front_of_what_a_cut_page_left(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    """The relay records the first part of a page, and dies before it publishes the rest."""
    with connect(database) as conn:
        with relay_session(database, bootstrap_servers, clean=False) as session:
            insert(conn, topic, "k", b"k:0")
            turn_until(session, lambda: published(conn) == 1, "it is level")
            fill_queue_at(session, b"k:2")
            with conn.transaction():
                for version in range(1, 5):
                    insert(conn, topic, "k", f"k:{version}")
            turn_until(session, lambda: bool(session._pages), "the page ends early")

            def is_recorded() -> bool:
                session._publisher.serve(0.01)
                session._record()
                return published(conn) == 2

            wait_until(is_recorded, "the first part is recorded")
        with relay_session(database, bootstrap_servers) as successor:
            turn_until(successor, lambda: published(conn) == 5, "it publishes the rest")
    found = compare(read_topic(bootstrap_servers, topic), [("k", version) for version in range(5)])
    assert not found.broken
    assert found.duplicate_records == 0
