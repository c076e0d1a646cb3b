"""Short scripts for the safeguards of streams and of reading: late answers, producers, probation, turns."""

from __future__ import annotations

from typing import Any

from outbox_relay.publisher.core.values import Page, Row, Scope
from outbox_relay.publisher.snapshot import Snapshot
from tests.support.core_search.directed_calls import core_of, give, row_of, sends, write_all
from tests.support.core_search.directed_worlds import Flags

TOPIC = Scope("topic", "b")


def a_partition_is_sent_more_before_its_wire_is_empty(made: Any, _: Flags) -> bool:
    """1 is on the wire, and the window has room."""
    core = core_of(made)
    give(core, "tail", row_of(1))
    core.to_send()
    give(core, "tail", row_of(2))
    return sends(core) == [2]


def a_late_refusal_accuses_nothing(made: Any, _: Flags) -> bool:
    """2 is refused late, by a producer that had 1 in front of it. Meanwhile it is alone on another one's wire."""
    core = core_of(made)
    give(core, "tail", row_of(1), row_of(2))
    (first, old), (second, _producer) = core.to_send()
    core.lost(old)
    [(_item, producer), _other] = core.to_send()
    core.acknowledged([first], producer)
    core.refused([second], old)
    return not core.holds.claims


def an_acknowledgement_publishes_its_own_message_only(made: Any, _: Flags) -> bool:
    """1 is acknowledged twice; 2 is on the wire."""
    core = core_of(made)
    give(core, "tail", row_of(1), row_of(2))
    (first, producer), _second = core.to_send()
    core.acknowledged([first, first], producer)
    return [item.row.id for item in core.streams.published] == [1]


def a_late_acknowledgement_makes_no_room_on_a_wire(made: Any, _: Flags) -> bool:
    """1 is acknowledged by a producer that ended, and still on the wire of the next one, which has to send it alone."""
    core = core_of(made)
    give(core, "tail", row_of(1), row_of(2))
    (first, producer), _second = core.to_send()
    core.streams.suspect("b")
    core.lost(producer)
    is_alone = sends(core) == [1]
    core.acknowledged([first], producer)
    return is_alone and not core.to_send()


def a_topic_on_probation_returns_to_its_pace(made: Any, _: Flags) -> bool:
    """1 fails. Probation lasts for three messages that do not; then the others are sent together."""
    core = core_of(made)
    give(core, "tail", row_of(1), *(row_of(id_, key="b2") for id_ in range(2, 7)))
    for _refusal in range(2):  # with others on the wire, then alone
        item, producer = core.to_send()[0]
        core.refused([item], producer)
    pace = []
    while sent := core.to_send():
        pace.append((sent[0][1].is_single, len(sent)))
        for item, producer in sent:
            core.acknowledged([item], producer)
    return pace == [(True, 1)] * 3 + [(False, 2)]


def a_late_failure_ends_no_other_producer(made: Any, _: Flags) -> bool:
    """A producer ended already, and ends again."""
    core = core_of(made)
    old = core.streams.main
    core.lost(old)
    core.lost(old)
    return len(core.streams.producers() & {core.streams.main, core.streams.single}) == 2 and (
        core.streams.main.number == core.streams.single.number + 1
    )


def a_producer_is_of_use_until_its_wires_are_empty(made: Any, _: Flags) -> bool:
    """Partition 1 is silent. Its producer has a message of partition 0, too, and another one is queued there."""
    core = core_of(made)
    give(core, "tail", row_of(1, "a", "a1"), row_of(2, "a", "a2"))
    (first, producer), (second, _) = core.to_send()
    core.silent("a", first.partition, 0.0)
    give(core, "tail", row_of(3, "a", "a2"))
    was_of_use = producer in core.streams.producers()
    core.acknowledged([second], producer)
    return was_of_use and producer not in core.streams.producers()


def a_silent_partition_gets_another_producer(made: Any, _: Flags) -> bool:
    """What was sent may stay on the old wire: beside it, a message that is sent again would not be alone."""
    core, scope = core_of(made), Scope("partition", "b", 0)
    core.streams.suspect("b")
    give(core, "tail", row_of(1))
    [(_item, producer)] = core.to_send()
    core.silent("b", 0, 0.0)
    write_all(core)
    core.holds.release(scope)
    write_all(core)
    give(core, "drain", row_of(1, in_doubt=True))
    [(_item, other)] = core.to_send()
    return bool(other != producer)


def a_refusal_leaves_an_older_doubt(made: Any, _: Flags) -> bool:
    """1 may be in Kafka since an earlier leadership. Now it is refused, with 2 behind it, and then alone."""
    core = core_of(made, {TOPIC: 1})
    core.holds.release(TOPIC)
    write_all(core)
    give(core, "drain", row_of(1, in_doubt=True), row_of(2))
    for _refusal in range(2):
        item, producer = core.to_send()[0]
        core.refused([item], producer)
    return core.holds.claims[1].in_doubt is True


def what_is_queued_for_a_partition_without_a_leader_waits(made: Any, _: Flags) -> bool:
    """Partition 1 has no leader. What is queued for it waits, and what is queued for partition 0 goes out."""
    core = core_of(made)
    give(core, "tail", row_of(1, "a", "a1"), row_of(2, "a", "a2"))
    core.unavailable("a", core.topics.partition(Row(1, 1, "a", "a1", 1)), 0.0)
    return sends(core) == [2] and set(core.holds.claims) == {1}


def a_move_waits_for_no_other_topic(made: Any, _: Flags) -> bool:
    """Topic a is asked to move while a message of topic b is on the wire."""
    core = core_of(made)
    give(core, "tail", row_of(1))
    core.to_send()
    core.set_count("a", 3)
    write = core.next_write()
    return write is not None and write.moved == (("a", 3),)


def catch_ups_and_holds_take_turns(made: Any, _: Flags) -> bool:
    """A catch-up goes on and on, and so does a hold: each has every fourth read."""
    core = core_of(made, {TOPIC: 1})
    core.holds.release(TOPIC)
    write_all(core)
    give(core, "tail", heavy=("a",))
    kinds = []
    for _turn in range(8):
        read = core.next_read()
        kinds.append(read.kind)
        core.add(Page(read, (), Snapshot(5, 5), has_more=read.kind != "tail", is_flushed=True))
        write_all(core)
    return [kinds.count(kind) for kind in ("tail", "list", "drain")] == [4, 2, 2]


def a_catch_up_alone_has_every_second_read(made: Any, _: Flags) -> bool:
    """No hold is drained: its turns are the catch-up's."""
    core = core_of(made)
    give(core, "tail", heavy=("a",))
    kinds = []
    for _turn in range(8):
        read = core.next_read()
        kinds.append(read.kind)
        core.add(Page(read, (), Snapshot(5, 5), has_more=read.kind == "list", is_flushed=True))
    return kinds.count("list") == 4


def a_topic_that_trickles_leaves_room_for_others(made: Any, _: Flags) -> bool:
    """Each tail has one message of a topic that acknowledges nothing: no page is too long, but they add up."""
    core = core_of(made)
    for id_ in range(40):
        read = core.next_read()
        if read is None:
            return False
        rows = (row_of(id_),) if read.kind == "tail" and "b" not in read.apart else ()
        core.add(Page(read, rows, Snapshot(5, 5), has_more=read.kind == "list", is_flushed=True))
    return True


STREAMS = (
    a_partition_is_sent_more_before_its_wire_is_empty,
    a_late_refusal_accuses_nothing,
    an_acknowledgement_publishes_its_own_message_only,
    a_late_acknowledgement_makes_no_room_on_a_wire,
    a_topic_on_probation_returns_to_its_pace,
    a_late_failure_ends_no_other_producer,
    a_producer_is_of_use_until_its_wires_are_empty,
    a_silent_partition_gets_another_producer,
    a_refusal_leaves_an_older_doubt,
    what_is_queued_for_a_partition_without_a_leader_waits,
    a_move_waits_for_no_other_topic,
    catch_ups_and_holds_take_turns,
    a_catch_up_alone_has_every_second_read,
    a_topic_that_trickles_leaves_room_for_others,
)
