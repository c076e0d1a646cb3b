"""A body that no record of the topic could hold, from `send` to the listener, encrypted and in a store."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.codecs import Chain
from outbox.codecs.claim_check import ClaimCheck, DirectoryStore
from outbox.inbox import DelaySchedule
from tests.support.encrypted_bodies import encryption
from tests.support.inbox_stage import InboxStage
from tests.support.kafka_records import read_topic
from tests.support.relay_session import relay_session, turn_until
from tests.support.waiting import wait_until


@pytest.mark.feature("H-26")
def test_a_large_body_reaches_the_listener_and_a_missing_one_is_parked(
    inbox: InboxStage, topic: str, tmp_path: Path
) -> None:
    codecs = {topic: Chain(encryption(), ClaimCheck(DirectoryStore(tmp_path)))}
    outbox = Outbox(codecs=codecs)
    body = "3 MB " * 600_000
    with psycopg.connect(inbox.dsn) as conn:
        outbox.send(conn, Message(topic, "k", body, queue=0))
        conn.rollback()
        orphans = [found for found in tmp_path.rglob("*") if found.is_file()]
        outbox.send(conn, Message(topic, "k", body, queue=0))
        conn.commit()
        lost = [found for found in tmp_path.rglob("*") if found.is_file()]
        outbox.send(conn, Message(topic, "gone", body, queue=0))
    assert len(orphans) == 1, "a transaction that is rolled back leaves its object"
    (gone,) = [found for found in tmp_path.rglob("*") if found.is_file() and found not in lost]
    gone.rename(tmp_path / "elsewhere")
    with relay_session(inbox.dsn, inbox.bootstrap_servers) as session:
        turn_until(session, lambda: inbox.end_of(topic) == 2, "both are in Kafka")
    assert [record.value for record in read_topic(inbox.bootstrap_servers, topic)] == [b"", b""]
    with inbox.consumer(topic, codecs=codecs, delays=DelaySchedule.of([0.1] * 200)):
        inbox.wait_applied(1)
        wait_until(lambda: inbox.count("outbox.inbox_parked"), "the other one is parked")
        (failure,) = inbox.conn.execute("SELECT fingerprint FROM outbox.inbox_parked").fetchone() or ("",)
        assert failure.startswith("MissingObjectError")
        (tmp_path / "elsewhere").rename(gone)
        inbox.wait_applied(2)
    assert set(inbox.applied("body")) == {body}
