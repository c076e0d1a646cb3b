"""What a consumer shows of itself: counts that match its database, and probes that tell trouble from defects."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from outbox.errors import ConfigurationError
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, PushConsumer
from outbox.inbox.metrics import prometheus_text, serve_metrics
from tests.support.inbox_stage import Connection, InboxStage, apply, apply_all
from tests.support.scraping import Samples, get, probe, samples, scrape
from tests.support.waiting import wait_until


def sample(consumer: PushConsumer, name: str, *labels: str) -> float:
    """One sample of a consumer."""
    found: Samples = samples(prometheus_text([consumer]))
    return found[f"outbox_member_{name}", consumer.member.group, *labels]


@pytest.mark.feature("S-98")
def test_each_message_is_counted_by_what_became_of_it(inbox: InboxStage, topic: str) -> None:
    """Key 0 succeeds at its retry; key 1 dies, and what is behind it waits; key 2 is discarded."""
    failed: set[object] = set()

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.body == b"0" and message.message_id not in failed:
            failed.add(message.message_id)
            return ConsumeResult.RECONSUME_LATER
        if message.body == b"1":
            raise ValueError("never")
        return ConsumeResult.DISCARD if message.body == b"2" else apply(conn, message)

    for number in range(8):
        inbox.produce(topic, f"k{number % 4}", str(number), partition=number % 4, tags="a")
    copied = inbox.produce(topic, "k3", "x", partition=3, tags="a")
    inbox.produce(topic, "k3", "x", partition=3, tags="a", message_id=copied)
    inbox.produce(topic, "k3", "y", partition=3, tags="b")
    inbox.flush()
    delays = DelaySchedule.of(["0.2s"])
    with inbox.consumer({topic: "a"}, listener, orderly=True, delays=delays) as consumer:
        inbox.wait_applied(5)  # 0, 3, 4, 6, 7 and x, without those that are held
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'") == 1, "one is dead")
        inbox.wait_applied(6)
        wait_until(lambda: consumer.vitals().lag == 0, "all is done")
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 2, "the dead one, and the one behind it")
        vitals = consumer.vitals()
        parked, applied = vitals.messages["parked"], vitals.messages["applied"]
        # The second message of key 0 came while its first one was parked, or after.
        assert parked + applied == 8
        assert parked in (3, 4)
        rest = {"discarded": 1, "refused": 1, "dead": 0, "gone": 0, "skipped": 1}
        assert {name: vitals.messages[name] for name in rest} == rest
        assert vitals.retries == {"applied": parked - 2, "discarded": 0, "failed": 0, "dead": 1}
        assert (vitals.in_flight, vitals.given_up, len(vitals.partitions)) == (0, 0, 4)
        assert sample(consumer, "messages_total", "applied") == applied
        assert sample(consumer, "retries_total", "dead") == 1
        assert sample(consumer, "lag_messages", topic, "3") == 0
        wait_until(lambda: consumer.vitals().held_keys == 1, "the held key is counted")


@pytest.mark.feature("S-98")
def test_batches_are_counted_by_messages(inbox: InboxStage, topic: str) -> None:
    def listener(conn: Connection, messages: list[ConsumedMessage]) -> ConsumeResult | list[ConsumeResult]:
        if len(messages) == 8:
            return [ConsumeResult.DISCARD, *[ConsumeResult.SUCCESS] * 7]
        return apply_all(conn, messages)

    inbox.produce_numbered_in(topic, 8)
    with inbox.consumer(topic, listener, batch=8, linger=2.0, workers=1) as consumer:
        inbox.wait_applied(7)
        wait_until(lambda: consumer.vitals().lag == 0, "all is done")
        assert consumer.vitals().messages["applied"] == 7
        assert consumer.vitals().messages["discarded"] == 1


@pytest.mark.feature("S-98")
def test_what_waits_and_what_runs_is_shown_until_it_is_done(inbox: InboxStage, topic: str) -> None:
    began, go_on = threading.Semaphore(0), threading.Event()

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        began.release()
        assert go_on.wait(60)
        return apply(conn, message)

    inbox.produce_numbered_in(topic, 6)
    consumer = inbox.consumer(topic, listener, workers=2)
    with serve_metrics([consumer], 0) as server:
        assert probe(server.port, "/livez")[0] == 200
        status, page = probe(server.port, "/readyz")
        assert (status, page["checks"][0]["detail"]) == (503, "it has not registered yet")
        with consumer:
            for _ in range(2):
                assert began.acquire(timeout=60)
            with pytest.raises(ConfigurationError, match="was started already"):
                consumer.start()
            place = (inbox.group, topic, "0")
            wait_until(lambda: scrape(server.port).get(("outbox_member_lag_messages", *place)) == 6, "lag")
            found = scrape(server.port)
            assert found["outbox_member_running_messages", *place] == 2
            assert found["outbox_member_waiting_messages", *place] == 4
            assert probe(server.port, "/readyz")[1]["checks"][0] == {
                "name": inbox.group,
                "ok": True,
                "detail": "reads 4 partitions",
            }
            go_on.set()
            inbox.wait_applied(6)
            wait_until(lambda: consumer.vitals().lag == 0 == consumer.vitals().in_flight, "all is done")
        assert probe(server.port, "/livez")[0] == 200
        assert probe(server.port, "/readyz")[1]["checks"][0]["detail"] == "it ends"
        assert get(server.port, "/")[0] == 404


@pytest.mark.feature("S-96")
def test_a_database_that_is_away_makes_it_unready_and_not_dead(inbox: InboxStage, topic: str) -> None:
    away = threading.Event()
    name = f"{inbox.group}-member"

    def connect() -> psycopg.Connection[Any]:
        if away.is_set():
            raise psycopg.OperationalError("password=secret: no route to host")
        return psycopg.connect(inbox.dsn, application_name=name)

    with inbox.consumer(topic, dsn=connect) as consumer, serve_metrics([consumer], 0) as server:
        ready: Callable[[], int] = lambda: probe(server.port, "/readyz")[0]  # noqa: E731
        wait_until(lambda: ready() == 200 and consumer.vitals().partitions, "it is ready")
        away.set()
        inbox.conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", [name]
        )
        inbox.produce(topic, "k", "1")
        inbox.flush()
        wait_until(
            lambda: "PostgreSQL: OperationalError" in get(server.port, "/readyz")[1], "it is not ready"
        )
        assert ready() == 503
        assert "secret" not in get(server.port, "/readyz")[1]
        assert probe(server.port, "/livez")[0] == 200
        away.clear()
        wait_until(lambda: ready() == 200, "it is ready again")
        inbox.wait_applied(1)


def test_a_consumer_that_was_ended_by_an_error_is_to_be_started_again(inbox: InboxStage, topic: str) -> None:
    with inbox.consumer(topic):
        wait_until(lambda: inbox.count("outbox.consumer_member") == 1, "a member runs")
        other = inbox.consumer(topic, orderly=True)
        with pytest.raises(Exception, match="one topic by the same expression"):
            other.start()
        with serve_metrics([other], 0) as server:
            status, page = probe(server.port, "/livez")
            assert status == 503
            assert page["checks"][0]["detail"] == "it has ended: SubscriptionConflictError"
