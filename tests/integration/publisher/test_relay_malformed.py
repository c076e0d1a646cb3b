"""Rows that no Kafka record can be made of, however they got into the table: each holds up its own key, by name.

The table refuses such rows where it checks them. The relay does not rely on that, so these tests write without checks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from outbox_relay.publisher.core.values import Item, Row
from outbox_relay.publisher.errors import BrokenError
from outbox_relay.publisher.hands import at_least_once
from outbox_relay.publisher.hands.published import check_offsets
from outbox_relay.publisher.records import LONGEST_TOPIC
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import connect, insert, insert_unchecked, wait_published
from tests.support.relay_thread import RelayThread
from tests.support.waiting import wait_until

DEEP = '{"a": ' + "[" * 1_500 + "]" * 1_500 + "}"

WRONG_HEADERS: dict[str, dict[str, Any]] = {
    "a list as a value": {"headers": '{"a": ["x"]}'},
    "a number as a value": {"headers": '{"a": 5}'},
    "an object as a value": {"headers": '{"a": {"b": "c"}}'},
    "a list": {"headers": '["a"]'},
    "a reserved name": {"headers": '{"Outbox-Id": "00000000-0000-0000-0000-000000000000"}'},
    "a trace of their own": {"headers": '{"TraceParent": "x"}'},
    "deeper than Python reads": {"headers": DEEP},
}
WRONG_PLACE: dict[str, tuple[str, dict[str, Any]]] = {
    "queue -1": ("QUEUE_OUT_OF_RANGE", {"queue": -1}),
    "queue 4": ("QUEUE_OUT_OF_RANGE", {"queue": 4}),
    "a topic of 600 characters": ("TOPIC_EXCEPTION", {"topic": "t" * 600}),
    "a topic of 40,000 characters": ("TOPIC_EXCEPTION", {"topic": "t" * 40_000}),
    "an empty topic": ("TOPIC_EXCEPTION", {"topic": ""}),
    "a topic with a blank": ("TOPIC_EXCEPTION", {"topic": "a b"}),
    "a selector nobody knows": ("SELECTOR_FAILED", {"selector": "by-moon-phase"}),
}


def each_holds_up_its_own(
    dsn: str, bootstrap_servers: str, topic: str, rows: list[tuple[str, dict[str, Any]]]
) -> None:
    """Write one wrong row to each lane but one, and behind it a good one, of its key or queue and of another.

    A topic that cannot be is parked; messages of one whose name is too long for that park alone.
    """
    with connect(dsn) as conn:
        wrong = {}
        alone = {lane for lane, (_, row) in enumerate(rows) if len(row.get("topic", "")) > LONGEST_TOPIC}
        for lane, (code, columns) in enumerate(rows):
            row = {"topic": topic, "key": f"wrong{lane}", "lane": lane, **columns}
            wrong[insert_unchecked(conn, body=b"bad", **row)] = lane, code
            held = {**row, "headers": None, "selector": None}
            behind = insert_unchecked(conn, body=b"bad", **held)
            if lane in alone:
                wrong[behind] = lane, code
        for lane in range(8):
            insert_unchecked(conn, topic=topic, key=f"good{lane}", body=b"good", lane=lane)
        flowing = sorted(f"good{lane}".encode() for lane in range(8))
        with RelayThread(dsn, bootstrap_servers) as relay:
            for message_id, (lane, code) in wrong.items():
                what = "topic" if code == "TOPIC_EXCEPTION" and lane not in alone else "key"
                event = relay.wait_for(f"{what} parked", message_id=message_id)
                assert (event["lane"], event["reason"].split(":")[0]) == (lane, code)
                assert len(event["reason"]) < 500
            wait_until(lambda: len(read_topic(bootstrap_servers, topic)) >= len(flowing), "the others flow")
            halted = "SELECT count(*) FROM outbox.lane WHERE stopped_error IS NOT NULL"
            assert conn.execute(halted).fetchone() == (0,)
            waiting = "SELECT count(*) FROM outbox.waiting"
            parked = 2 * len(rows)
            wait_until(
                lambda: conn.execute(waiting).fetchone() == (parked,), "each is held with what is behind it"
            )
            found = conn.execute(
                "SELECT stopped_message::text, lane FROM outbox.lane WHERE stopped_error IS NOT NULL UNION ALL "
                "SELECT w.message_id::text, k.lane FROM outbox.parked_key k JOIN outbox.waiting w ON w.id = k.head"
            ).fetchall()
            assert dict(found) == {message_id: lane for message_id, (lane, _) in wrong.items()}
            assert relay.is_running
        assert relay.error is None
    records = read_topic(bootstrap_servers, topic)
    assert sorted(record.key or b"" for record in records) == flowing


@pytest.mark.feature("S-38")
def test_reserved_headers_and_those_that_are_not_text_hold_up_their_key_unpublished(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    each_holds_up_its_own(
        database, bootstrap_servers, topic, [("MALFORMED", row) for row in WRONG_HEADERS.values()]
    )


@pytest.mark.feature("S-38")
def test_a_queue_that_cannot_be_holds_up_its_key_and_a_topic_itself(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    each_holds_up_its_own(database, bootstrap_servers, topic, list(WRONG_PLACE.values()))


def test_an_error_of_the_relay_itself_is_named_and_waited_out_without_a_crash(
    database: str, bootstrap_servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [RuntimeError("the books do not balance"), KeyError("nothing of the kind")]

    def breaks(items: Collection[Item]) -> None:
        if broken:
            raise broken.pop(0)

    monkeypatch.setattr(at_least_once, "check_offsets", breaks)
    with connect(database) as conn, RelayThread(database, bootstrap_servers) as relay:
        insert(conn, topic, "k", "k:1")
        wait_until(lambda: relay.find("delivery failed"), "the first one failed")
        insert(conn, topic, "k", "k:2")  # k:1 is read back the next time
        wait_published(conn)
        first, second = relay.find("delivery failed")
        assert "internal error in breaks" in first["text"]
        assert "RuntimeError: the books do not balance" in first["text"]
        assert "KeyError" in second["text"]
        assert second["next_try_in_s"] > first["next_try_in_s"], "the pause grows"
    assert relay.error is None
    assert {record.value for record in read_topic(bootstrap_servers, topic)} == {b"k:1", b"k:2"}


def test_offsets_that_do_not_ascend_are_an_error_of_the_relay() -> None:
    def acknowledged(*offsets: int) -> list[Item]:
        row = Row(1, 1, "t", "k", 1)
        return [Item(row, 1, 0, in_doubt=False, taken_from=None, offset=offset) for offset in offsets]

    check_offsets(acknowledged(8, 9, 11))
    with pytest.raises(BrokenError, match=r"in t\[0\]: deliveries out of order"):
        check_offsets(acknowledged(8, 9, 9))
