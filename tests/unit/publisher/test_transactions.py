"""The batches of the exactly-once mode: what goes into one, and when an intent is of no more use."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outbox_relay.publisher.core.streams import Streams
from outbox_relay.publisher.core.transactions import NotProvenError, Transactions
from outbox_relay.publisher.core.values import Batch, Item, Limits, Proof, Row


def digest_of(items: Sequence[Item]) -> str:
    return ",".join(str(item.row.id) for item in items)


def batches(*topics: str, batch: int = 5000, room: int = 1 << 60) -> Transactions:
    """Batches over streams that have a message of each topic, in partition 0, with ids from 1 on."""
    limits = Limits(batch=batch)
    streams = Streams(limits)
    for number, topic in enumerate(topics, 1):
        streams.push(Item(Row(number, number, topic, "k", 10), number, 0, in_doubt=False, taken_from=None))
    return Transactions(Proof(7, "x"), streams, limits, digest_of, lambda _: room)


def seal(some: Transactions) -> Batch | None:
    before = len(some.batches)
    some.seal(lambda _: False)
    return some.batches[-1] if len(some.batches) > before else None


def ids(batch: Batch | None) -> list[int]:
    assert batch is not None
    return [item.row.id for item in batch.items]


def deliver(some: Transactions, batch: Batch) -> None:
    """Bring a batch from its intent to its end."""
    some.written([batch], (), set())
    assert some.begin() is batch
    some.produced(batch)
    assert some.end() is batch
    some.committed(batch)


def test_a_flood_of_one_topic_leaves_room_for_others() -> None:
    some = batches(*"aaaaaaaab", batch=4)
    assert ids(seal(some)) == [1, 2, 3, 9]


def test_a_topic_of_small_requests_has_few_messages_of_a_partition_in_a_batch() -> None:
    some = batches(*"aaaa", room=25)
    assert ids(seal(some)) == [1, 2]


def test_a_message_that_is_larger_than_the_room_goes_alone() -> None:
    assert ids(seal(batches(*"aa", room=5))) == [1]


def test_a_topic_on_probation_waits_for_others_and_goes_by_itself() -> None:
    some = batches(*"aab")
    some._streams.suspect("a")
    first = seal(some)
    assert first is not None
    assert ids(first) == [1], "the number before it is odd"
    assert seal(some) is None, "nothing is sealed behind a probe"
    deliver(some, first)
    assert ids(seal(some)) == [3]
    assert seal(some) is None, "a probe waits until nothing else is under way"


def test_an_intent_stays_until_all_is_recorded_and_the_last_one_for_longer() -> None:
    some = batches(*"abc", batch=2)
    first = seal(some)
    assert first is not None
    deliver(some, first)
    assert some.ended({1, 2}) == (7,), "its own intent is what the offset is compared with"
    some.written((), (7,), {1})
    second = seal(some)
    assert second is not None
    deliver(some, second)
    assert some.ended({3}) == (), (
        "a message of the first batch has no publication: another session holds its row"
    )
    assert some.ended({2, 3}) == (8,)


def test_the_offset_of_an_unknown_batch_proves_nothing() -> None:
    some = batches("a")
    with pytest.raises(NotProvenError, match="expected one of"):
        some.proven_at(Proof(7, "another environment"))
    with pytest.raises(NotProvenError):
        some.proven_at(Proof(8, "1"))


def test_a_batch_that_was_not_sent_is_not_taken_for_committed() -> None:
    some = batches("a")
    batch = seal(some)
    assert batch is not None
    some.written([batch], (), set())
    with pytest.raises(NotProvenError):
        some.proven_at(batch.proof)


def test_an_empty_batch_keeps_the_group() -> None:
    some = batches()
    some.seal(lambda _: False, is_empty=True)
    assert some.batches[0].proof.number == 8
    assert not some.batches[0].items
