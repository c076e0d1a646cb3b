"""The streams: what Kafka acknowledged, by partition, until a write records it."""

from __future__ import annotations

from outbox_relay.publisher.core import Core
from outbox_relay.publisher.core.values import Item, Page, Row
from outbox_relay.publisher.snapshot import Snapshot

SNAPSHOT = Snapshot.parse("10:10:")
PARTITIONS = 3
ROWS = tuple(Row(number, number, "orders", f"k{number}", 10) for number in range(1, 10))


def core_with_sent_rows() -> Core:
    core = Core(SNAPSHOT, {}, {"orders": PARTITIONS}, lambda row, count: row.id % count, is_unclean=False)
    read = core.next_read()
    assert read is not None
    core.add(Page(read, ROWS, SNAPSHOT, is_flushed=True))
    return core


def test_a_write_has_its_messages_in_the_order_in_which_they_were_read() -> None:
    """They lie in memory in that order: in another one, each of them is fetched anew by everything that touches it."""
    core = core_with_sent_rows()
    sent = core.to_send()
    for partition in (2, 0, 1):
        core.acknowledged([item for item, _ in sent if item.partition == partition], core.streams.main)
    write = core.next_write()
    assert write is not None
    assert [item.row for item in write.published] == [*ROWS]


def test_a_late_acknowledgement_publishes_no_other_message() -> None:
    core = core_with_sent_rows()
    first, second, third = [item for item, _ in core.to_send() if item.partition == 1]
    unknown = Item(ROWS[0], 99, 1, in_doubt=False, taken_from=None)
    core.acknowledged([second, unknown], core.streams.main)
    assert core.streams.published == [second]
    core.acknowledged([first, second, third], core.streams.main)
    assert sorted(item.row.id for item in core.streams.published) == [1, 4, 7]
