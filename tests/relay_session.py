"""One session of the relay in the test's own process, turn by turn; tests act between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outbox_relay.finder.finder import PAGE, prepare_session
from outbox_relay.lanes import lease
from outbox_relay.publishing.kafka import new_admin, producer_settings
from outbox_relay.publishing.producers import Producers
from outbox_relay.publishing.publisher import Publisher
from outbox_relay.publishing.topics import TopicBook
from outbox_relay.service.ahead import ReadAhead
from outbox_relay.service.session import Session
from outbox_relay.service.upkeep import Upkeep
from tests.waiting import wait_until
from tests.writing import Connection, connect


@contextmanager
def relay_session(dsn: str, bootstrap_servers: str, *, clean: bool = True) -> Iterator[Session]:
    """Take the lanes and yield the session; at the end settle and give them back, or die where not `clean`."""
    settings = producer_settings(bootstrap_servers, {})
    with connect(dsn) as conn:
        prepare_session(conn)
        held = lease.take(conn, lease.owner_name(), 10.0)
        ahead = ReadAhead(lambda: connect(dsn), PAGE)

        def new_publisher(on: Connection) -> Publisher:
            producers = Producers(settings)
            return Publisher(producers, TopicBook(on, producers.main, new_admin(settings)))

        session = Session(conn, held, new_publisher, ahead, Upkeep(lambda: connect(dsn)), page=PAGE)
        try:
            yield session
            if clean:
                assert session.finish(30.0) == 0
        finally:
            session.abandon()
            ahead.close()


def turn_until(session: Session, condition: Callable[[], bool], what: str) -> None:
    """Let the relay take turns until something is true."""

    def after_a_turn() -> bool:
        session.run_once(0.005)
        return condition()

    wait_until(after_a_turn, what)
