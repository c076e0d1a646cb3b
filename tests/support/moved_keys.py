"""Partitions that are added while messages flow, and what the records of a topic must look like whose keys moved.

The order of records in different partitions is that of the broker's clock, so the topics have LogAppendTime: what comes
in one millisecond is in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from outbox.partitioning.selectors import partition_of
from tests.support.kafka_records import Record, by_key_and_version
from tests.support.waiting import wait_until


def grow(
    bootstrap_servers: str, topic: str, partitions: int, assignment: list[list[int]] | None = None
) -> None:
    """Add partitions in Kafka, on these brokers if they are named, and wait until the broker lists them."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    new = NewPartitions(
        topic, partitions, **({} if assignment is None else {"replica_assignment": assignment})
    )
    admin.create_partitions([new])[topic].result(60)

    def listed() -> bool:
        known = admin.list_topics(timeout=15).topics[topic].partitions
        return len(known) == partitions and all(one.leader >= 0 for one in known.values())

    wait_until(listed, "the new partitions have leaders")


def wrong_of_moved(
    records: Iterable[Record],
    committed: Iterable[tuple[str, int]],
    before: int,
    after: int,
    *,
    may_go_back: bool = False,
) -> str:
    """Compare the first appearances of messages with what was committed; return what is wrong, empty if nothing.

    Args:
        records: a whole topic.
        committed: each (key, version); versions of a key rise in the order of its transactions.
        before: how many partitions the keys were hashed over first.
        after: how many at the end.
        may_go_back: whether a message may appear first in its old partition, in order, behind one in the new one.
    """
    first: dict[tuple[str, int], Record] = {}
    wrong: list[str] = []
    for record in sorted(records, key=lambda r: (r.timestamp, r.partition, r.offset)):
        first.setdefault(by_key_and_version(record), record)
        assert record.key is not None
        if record.partition not in {partition_of(None, record.key, count) for count in (before, after)}:
            wrong.append(f"{record.value!r} in partition {record.partition}")
    wanted = set(committed)
    wrong += [f"lost: {name}" for name in sorted(wanted - first.keys())]
    wrong += [f"ghost: {name}" for name in sorted(first.keys() - wanted)]
    newest: dict[str, Record] = {}
    for name in sorted(first):
        record, last = first[name], newest.get(name[0])
        newest[name[0]] = record
        if last is None or last.partition == record.partition:
            if last is not None and last.offset > record.offset:
                wrong.append(f"order: {name} at offset {record.offset}, behind it one at {last.offset}")
            continue
        if last.timestamp > record.timestamp:
            wrong.append(
                f"order: {name} {last.timestamp - record.timestamp} ms before the one in front of it"
            )
        if last.partition == _after(record, after) and not may_go_back:
            wrong.append(
                f"{name} is back in partition {record.partition}, {last.timestamp} to {record.timestamp}"
            )
    return "; ".join([*wrong[:10], *([f"… {len(wrong)} in all"] if len(wrong) > 10 else [])])


def _after(record: Record, partitions: int) -> int:
    assert record.key is not None
    return partition_of(None, record.key, partitions)


def moved(records: Iterable[Record], before: int) -> Counter[bytes]:
    """Count by key the messages that are in partitions that were added."""
    return Counter(record.key or b"" for record in records if record.partition >= before)
