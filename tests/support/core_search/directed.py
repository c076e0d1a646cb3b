"""Short scripts for safeguards that random schedules need too rarely: the fewest calls of the core that show each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from outbox_relay.publisher.core.values import Page, Scope
from outbox_relay.publisher.snapshot import Snapshot
from tests.support.core_search.directed_bounds import BOUNDS
from tests.support.core_search.directed_calls import core_of, give, row_of, sends, write_all
from tests.support.core_search.directed_ends import ENDS
from tests.support.core_search.directed_read_back import READ_BACK
from tests.support.core_search.directed_streams import STREAMS
from tests.support.core_search.directed_worlds import (
    Flags,
    a_new_server_is_not_clean,
    operators_wait_for_a_leader_of_a_new_server,
    what_is_announced_is_in_doubt_for_a_successor,
    what_was_sent_again_hides_what_is_in_front_of_it,
)
from tests.support.core_search.schedules import SMALL

KEY = Scope("key", "b", "b1")


def a_stop_keeps_what_is_in_front_of_doubt(made: Any, _: Flags) -> bool:
    """2 may be in Kafka."""
    core = core_of(made, {KEY: 1})
    core.holds.release(KEY)
    write_all(core)
    give(core, "drain", row_of(1), row_of(2, in_doubt=True), has_more=True)
    core.stop()
    return [item.row.id for one in core.streams.by_name.values() for item in one.queued] == [1, 2]


def a_stop_keeps_what_is_in_front_of_a_claim(made: Any, _: Flags) -> bool:
    """2 failed. If 1 were forgotten and 2 written, a successor could drain 2 before it reads 1."""
    core = core_of(made)
    give(core, "tail", row_of(1), row_of(2, is_faulty=True), row_of(3, key="b2"))
    core.stop()
    return sends(core) == [1]


def a_claim_waits_for_what_is_on_the_wire(made: Any, _: Flags) -> bool:
    """1 is on the wire, 2 failed. If 2 were written first, a successor could drain it before it reads 1."""
    core = core_of(made)
    give(core, "tail", row_of(1), row_of(2, is_faulty=True))
    core.to_send()
    write = core.next_write()
    return write is None or not write.claims


def what_is_behind_a_refused_message_waits_with_it(made: Any, _: Flags) -> bool:
    """4 is alone on the wire, 5 behind it. 6 fails; its topic has too many holds, and is held. Then 4 is refused."""
    core = core_of(made, {Scope("message", "b", 1): 1}, replace(SMALL, holds=1))
    give(core, "tail", row_of(4), row_of(5))
    (first, producer), _second = core.to_send()
    core.refused([first], producer)
    [(first, producer)] = core.to_send()
    give(core, "tail", row_of(6, is_faulty=True))
    core.refused([first], producer)
    return not core.to_send() and set(core.holds.claims) == {4, 5, 6}


def what_is_behind_a_refused_message_waits_for_its_key(made: Any, _: Flags) -> bool:
    """The hold of a key is nearly empty, and new messages pass: 5 is on the wire, 6 behind it. Then 7 and 5 fail."""
    core = core_of(made, {KEY: 1})
    core.holds.release(KEY)
    write_all(core)
    give(core, "drain", row_of(1))
    [(first, producer)] = core.to_send()
    give(core, "tail", row_of(5), row_of(6))
    core.acknowledged([first], producer)
    [(item, producer)] = core.to_send()
    give(core, "tail", row_of(7, is_faulty=True))
    core.refused([item], producer)
    return not core.to_send() and set(core.holds.claims) == {5, 6, 7}


def a_hold_waits_for_its_claims(made: Any, _: Flags) -> bool:
    """3 waits for its key, 1 is on the wire, 2 is about to wait: 3 is not drained before 2 is in the table."""
    core = core_of(made, {KEY: 3})
    give(core, "tail", row_of(1), row_of(2, is_faulty=True))
    core.to_send()
    core.holds.release(KEY)
    write = core.next_write()
    return write is None or not write.announce


def a_late_refusal_ends_its_producer(made: Any, _: Flags) -> bool:
    """A message of a held partition is refused, and so its producer ended: others send again what it had."""
    core = core_of(made)
    give(core, "tail", row_of(1, "a", "a1"), row_of(2, "a", "a2"))
    (first, producer), (second, _) = core.to_send()
    core.silent("a", first.partition, 0.0)
    core.refused([first], producer)
    again = core.to_send()
    return [item for item, _ in again] == [second] and again[0][1] != producer


def a_hold_outlives_rows_that_another_one_gets(made: Any, _: Flags) -> bool:
    """2 leaves its own hold for its topic's, and its claim waits for 1: the first hold is not let go before."""
    own = Scope("message", "s", 2)
    core = core_of(made, {own: 2})
    give(core, "tail", row_of(1, "s", "s1"))
    core.to_send()
    core.pause("s")
    core.holds.release(own)
    write_all(core)
    give(core, "drain", row_of(2, "s", "s1"))
    write = core.next_write()
    return write is None or own not in write.let_go


def a_topic_rests_while_a_write_moves_it(made: Any, _: Flags) -> bool:
    """A count is requested and taken back while the write that sets it is under way: nothing may be on the wire."""
    core = core_of(made)
    give(core, "tail", row_of(1, "a", "a1"))
    core.set_count("a", 3)
    write = core.next_write()
    core.set_count("a", 2)
    is_resting = not core.to_send()
    core.written(write)
    return is_resting and len(core.to_send()) == 1


def a_topic_is_held_whole_while_a_write_moves_it(made: Any, _: Flags) -> bool:
    """Partition 0 loses its leader while a write moves its topic: the key is in partition 2 then, and 2 waits."""
    core = core_of(made)
    give(core, "tail", row_of(1, "a", "a1"))
    core.set_count("a", 3)
    write = core.next_write()
    core.unavailable("a", 0, 0.0)
    core.written(write)
    give(core, "tail", row_of(2, "a", "a1"))
    return not core.to_send()


def silence_repeats_nothing_of_others(made: Any, _: Flags) -> bool:
    """One partition is silent: what another one has on the wire stays there, and is published when acknowledged."""
    core = core_of(made)
    give(core, "tail", row_of(1, "a", "a1"), row_of(2, "a", "a2"))
    (first, _), (second, producer) = core.to_send()
    core.silent("a", first.partition, 0.0)
    is_quiet = not core.to_send()
    core.acknowledged([second], producer)
    return is_quiet and core.streams.published == [second]


def a_flood_leaves_room_for_others(made: Any, _: Flags) -> bool:
    """A topic that is not acknowledged has a list without an end: the tail is read all the same."""
    core = core_of(made)
    id_ = 0
    for _turn in range(60):
        read = core.next_read()
        if read is None:
            return False
        rows = range(id_, id_ + read.rows) if read.kind == "list" else ()
        id_ += len(rows)
        heavy = ("b",) if read.kind == "tail" and "b" not in read.apart else ()
        page = Page(
            read, tuple(map(row_of, rows)), Snapshot(5, 5), read.kind == "list", heavy, is_flushed=True
        )
        core.add(page)
    return True


def bytes_are_bounded(made: Any, _: Flags) -> bool:
    """Each tail has the largest row of another topic, and nothing is acknowledged."""
    core = core_of(made)
    for number in range(12):
        read = core.next_read()
        if read is not None:
            row = row_of(number, f"t{number}")._replace(size=SMALL.largest)
            core.add(Page(read, (row,), Snapshot(5, 5), is_flushed=True))
    return bool(0 < core.memory.size <= SMALL.size)


def a_pause_ends_a_drain(made: Any, _: Flags) -> bool:
    """A topic's hold is announced, and about to be read, when an operator pauses the topic."""
    core = core_of(made, {Scope("topic", "b"): 1})
    core.holds.release(Scope("topic", "b"))
    write_all(core)
    core.pause("b")
    core.holds.release(Scope("topic", "b"))  # an operator's retry changes nothing
    write = core.next_write()
    return (write is None or not write.announce) and all(
        core.next_read().kind == "tail" for _turn in range(4)
    )


def a_pause_holds_new_messages(made: Any, _: Flags) -> bool:
    """The last message of a topic's hold is on the wire, and new ones pass, when an operator pauses the topic."""
    core = core_of(made, {Scope("topic", "b"): 1})
    core.holds.release(Scope("topic", "b"))
    write_all(core)
    give(core, "drain", row_of(1))
    core.to_send()
    core.pause("b")
    give(core, "tail", row_of(2))
    return not sends(core)


def a_key_waits_for_its_partition(made: Any, _: Flags) -> bool:
    """A key and its partition are held: what the partition has goes to the key first (R6)."""
    core = core_of(made, {KEY: 1, Scope("partition", "b", 0): 2})
    core.holds.release(KEY)
    core.holds.release(Scope("partition", "b", 0))
    return bool(write_all(core).announce == (Scope("partition", "b", 0),))


def a_key_is_not_read_when_its_topic_is_held(made: Any, _: Flags) -> bool:
    """A key's hold is announced; then its topic is held, too, by a failure that is over soon (R6)."""
    core = core_of(made, {KEY: 1})
    core.holds.release(KEY)
    write_all(core)
    core.unavailable("b", None, 0.0)
    return all(core.next_read().kind == "tail" for _turn in range(4))


def a_message_without_a_key_holds_itself(made: Any, _: Flags) -> bool:
    """1 fails, and has no key: 2 has none either, and goes out."""
    core = core_of(made)
    give(core, "tail", row_of(1, is_faulty=True)._replace(key=None), row_of(2)._replace(key=None))
    return sends(core) == [2]


def what_is_in_front_of_a_hold_passes(made: Any, _: Flags) -> bool:
    """A list has 2, and 3 of its key waits already."""
    core = core_of(made, {KEY: 3})
    give(core, "tail", row_of(2), row_of(4))
    return sends(core) == [2]


def a_key_holds_more_messages_at_the_limit(made: Any, _: Flags) -> bool:
    """A topic has as many holds as it may. 2 fails, of a key that is held: the topic's other keys go on."""
    core = core_of(made, {KEY: 1}, replace(SMALL, holds=1))
    core.holds.release(KEY)
    write_all(core)
    give(core, "drain", row_of(2, is_faulty=True))
    give(core, "tail", row_of(3, key="b2"))
    return sends(core) == [3]


def holds_that_ended_do_not_count(made: Any, _: Flags) -> bool:
    """A topic had as many holds as it may. One is let go; then 2 fails, and holds its key only."""
    core = core_of(made, {Scope("key", "b", "b0"): 1}, replace(SMALL, holds=1))
    core.holds.release(Scope("key", "b", "b0"))
    write_all(core)
    give(core, "drain")
    write_all(core)
    give(core, "tail", row_of(2, is_faulty=True), row_of(3, key="b2"))
    return sends(core) == [3]


def a_move_does_not_wait_for_a_key(made: Any, _: Flags) -> bool:
    """A key of a topic is held: until an operator retries it, the topic can move (R9)."""
    core = core_of(made, {Scope("key", "a", "a1"): 1})
    core.set_count("a", 3)
    write = core.next_write()
    return write is not None and bool(write.moved)


def each_failure_of_a_partition_doubles_its_pause(made: Any, _: Flags) -> bool:
    """A partition fails, and fails again when it is tried: it is tried after 8 seconds, then after 16."""
    core, scope = core_of(made), Scope("partition", "b", 0)
    tried = []
    for now in (0.0, 100.0):
        core.silent("b", 0, now)
        for after in (7.0, 8.0, 15.0, 16.0):
            for due in core.holds.due(now + after):
                core.holds.release(due)
            tried.append(core.holds.by_scope[scope].is_requested)
    return tried == [False, True, True, True, False, False, False, True]


SCRIPTS: dict[str, Callable[[Any, Flags], bool]] = {
    script.__name__: script
    for script in (
        a_stop_keeps_what_is_in_front_of_doubt,
        a_stop_keeps_what_is_in_front_of_a_claim,
        a_claim_waits_for_what_is_on_the_wire,
        what_is_behind_a_refused_message_waits_with_it,
        what_is_behind_a_refused_message_waits_for_its_key,
        a_hold_waits_for_its_claims,
        a_late_refusal_ends_its_producer,
        a_hold_outlives_rows_that_another_one_gets,
        a_flood_leaves_room_for_others,
        bytes_are_bounded,
        a_pause_ends_a_drain,
        a_pause_holds_new_messages,
        a_key_waits_for_its_partition,
        a_key_is_not_read_when_its_topic_is_held,
        a_message_without_a_key_holds_itself,
        what_is_in_front_of_a_hold_passes,
        a_key_holds_more_messages_at_the_limit,
        holds_that_ended_do_not_count,
        a_move_does_not_wait_for_a_key,
        each_failure_of_a_partition_doubles_its_pause,
        a_topic_rests_while_a_write_moves_it,
        a_topic_is_held_whole_while_a_write_moves_it,
        silence_repeats_nothing_of_others,
        what_is_announced_is_in_doubt_for_a_successor,
        operators_wait_for_a_leader_of_a_new_server,
        a_new_server_is_not_clean,
        what_was_sent_again_hides_what_is_in_front_of_it,
        *STREAMS,
        *BOUNDS,
        *ENDS,
        *READ_BACK,
    )
}
"""Each returns whether a core is sound."""
