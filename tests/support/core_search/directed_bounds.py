"""Short scripts for the safeguards of holds that end or pause, of moves, and of the memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outbox_relay.publisher.core.values import Page, Scope
from outbox_relay.publisher.snapshot import Snapshot
from tests.support.core_search.directed_calls import core_of, give, row_of, sends, write_all
from tests.support.core_search.directed_worlds import Flags
from tests.support.core_search.schedules import SMALL

KEY, TOPIC = Scope("key", "b", "b1"), Scope("topic", "b")


def _announced(made: Any) -> Any:
    core = core_of(made, {KEY: 1})
    core.holds.release(KEY)
    write_all(core)
    return core


def _reads_tails_only(core: Any) -> bool:
    return all(core.next_read().kind == "tail" for _turn in range(4))


def a_hold_that_got_a_claim_is_not_let_go(made: Any, _: Flags) -> bool:
    """A write that deletes an empty hold is under way. Then 2 fails, and 3 has to wait behind it."""
    core = _announced(made)
    give(core, "drain")
    write = core.next_write()
    give(core, "tail", row_of(2, is_faulty=True))
    core.written(write)
    give(core, "tail", row_of(3))
    return write.let_go == (KEY,) and not core.to_send()


def holds_that_are_passed_over_stop_no_other(made: Any, _: Flags) -> bool:
    """Three holds are to be drained, and one write announces one. Another session has all of their rows."""
    scopes = [Scope("key", "b", f"b{number}") for number in range(3)]
    core = core_of(made, dict.fromkeys(scopes, 1), replace(SMALL, announced=1))
    for scope in scopes:
        core.holds.release(scope)
    asked = set()
    for _turn in range(3):
        write = core.next_write()
        asked.update(write.announce)
        core.written(replace(write, announce=()))
    return asked == set(scopes)


def a_retraction_is_written_once(made: Any, _: Flags) -> bool:
    """A hold is announced, and stops."""
    core = _announced(made)
    core.holds.hold(KEY)
    return write_all(core).retract == (KEY,) and core.next_write() is None


def a_hold_that_stops_during_its_announcement_is_not_read(made: Any, _: Flags) -> bool:
    """The hold stops while the write that announces it is under way."""
    core = core_of(made, {KEY: 1})
    core.holds.release(KEY)
    write = core.next_write()
    core.holds.hold(KEY)
    core.written(write)
    return _reads_tails_only(core)


def a_message_of_a_hold_that_stopped_is_not_sent_again(made: Any, _: Flags) -> bool:
    """A page of a topic's hold is out when Kafka refuses the topic: all of it waits for the next try."""
    core = core_of(made, {TOPIC: 1})
    core.holds.release(TOPIC)
    write_all(core)
    give(core, "drain", row_of(1), row_of(2))
    item, producer = core.to_send()[0]
    core.unavailable("b", None, 1.0)
    core.lost(producer, [item])
    return not core.to_send() and len(write_all(core).claims) == 2


def a_hold_is_drained_while_it_gets_messages(made: Any, _: Flags) -> bool:
    """2 comes to a requested hold, and its claim is written: the same write announces the hold."""
    core = core_of(made, {KEY: 1})
    core.holds.release(KEY)
    give(core, "tail", row_of(2))
    return bool(write_all(core).announce == (KEY,))


def what_was_given_up_is_let_go_below_a_hold_of_its_topic(made: Any, _: Flags) -> bool:
    """All that waits for a key is given up while a write is under way that announces the topic's hold."""
    core = core_of(made, {KEY: 1, TOPIC: 2})
    core.holds.release(TOPIC)
    write = core.next_write()
    core.holds.pass_empty([KEY])
    core.written(write)
    write = core.next_write()
    return write is not None and write.let_go == (KEY,)


def a_hold_with_an_unwritten_claim_is_not_empty(made: Any, _: Flags) -> bool:
    """2 is about to wait for its key, for which the table has nothing."""
    core = core_of(made, {KEY: 1})
    give(core, "tail", row_of(2))
    core.holds.pass_empty([KEY])
    return bool(write_all(core).let_go == ())


def a_closed_topic_holds_what_comes_when_all_of_it_was_given_up(made: Any, _: Flags) -> bool:
    """Kafka lacks a topic, and all that waited was given up: the row of its hold goes, and the hold does not."""
    core = core_of(made, {TOPIC: 1})
    core.unavailable("b", None, 1.0)
    core.holds.drop_row(TOPIC)
    write = core.next_write()
    if write is None or write.let_go != (TOPIC,):
        return False
    core.written(write)
    give(core, "tail", row_of(2))
    return not core.to_send() and len(write_all(core).claims) == 1


def a_row_with_an_unwritten_claim_is_not_dropped(made: Any, _: Flags) -> bool:
    """2 is about to wait for its topic, and 3 comes when the row is about to be deleted."""
    core = core_of(made, {TOPIC: 1})
    give(core, "tail", row_of(2))
    core.holds.drop_row(TOPIC)
    if write_all(core).let_go:
        return False
    core.holds.drop_row(TOPIC)
    give(core, "tail", row_of(3))
    return bool(write_all(core).let_go == ())


def a_page_of_a_hold_that_ended_stays(made: Any, _: Flags) -> bool:
    """A page was read, and all of it given up before it was routed."""
    core = _announced(made)
    read = next(read for read in iter(core.next_read, None) if read.kind == "drain")
    core.holds.pass_empty([KEY])
    write_all(core)
    core.add(Page(read, (row_of(1),), Snapshot(5, 5)))
    return not core.to_send()


def an_announced_page_is_read_once(made: Any, _: Flags) -> bool:
    """1 is out. The next page is not announced."""
    core = _announced(made)
    give(core, "drain", row_of(1), has_more=True)
    return _reads_tails_only(core)


def a_pause_has_a_longest_length(made: Any, _: Flags) -> bool:
    """A partition fails again and again."""
    core, scope = core_of(made), Scope("partition", "b", 0)
    for now in range(0, 1000, 100):
        core.unavailable("b", 0, float(now))
    for due in core.holds.due(900.0 + SMALL.longest_pause):
        core.holds.release(due)
    return bool(core.holds.by_scope[scope].is_requested)


def failures_of_one_try_count_once(made: Any, _: Flags) -> bool:
    """Two partitions of a topic are refused: it is tried 8 seconds after the first refusal."""
    core = core_of(made)
    core.unavailable("a", None, 1.0)
    core.unavailable("a", None, 2.0)
    return bool(core.holds.due(9.0))


def a_move_is_taken_back(made: Any, _: Flags) -> bool:
    """Another count is asked for, and then the old one."""
    core = core_of(made)
    core.set_count("a", 3)
    core.set_count("a", 2)
    return core.next_write() is None


def a_topic_moves_while_rows_are_locked(made: Any, _: Flags) -> bool:
    """Another session holds a row that a claim needs. A move is in no table."""
    core = core_of(made)
    core.set_count("a", 3)
    give(core, "tail", row_of(1, is_faulty=True))
    core.next_write()
    plain = core.publications()
    return plain is not None and plain.moved == (("a", 3),) and not plain.claims


def a_topic_that_has_moved_is_sent(made: Any, _: Flags) -> bool:
    """A write has moved topic a."""
    core = core_of(made)
    core.set_count("a", 3)
    write_all(core)
    give(core, "tail", row_of(1, "a", "a1"))
    return sends(core) == [1]


def rows_are_bounded(made: Any, _: Flags) -> bool:
    """Each tail has a small row of another topic, and nothing is acknowledged."""
    core = core_of(made)
    for id_ in range(SMALL.rows + 2):
        read = core.next_read()
        if read is not None:
            core.add(Page(read, (row_of(id_, f"t{id_ % 12}"),), Snapshot(5, 5), is_flushed=True))
    return bool(core.memory.rows == SMALL.rows)


def a_topic_has_its_share_of_bytes(made: Any, _: Flags) -> bool:
    """Few large messages of a topic fill its share; when most of them are written, it has room again."""
    core = core_of(made)
    give(core, "tail", *(row_of(id_)._replace(size=SMALL.largest) for id_ in range(1, 6)))
    was_full = core.memory.full()
    for item, producer in core.to_send():
        core.acknowledged([item], producer)
    item, producer = core.to_send()[0]
    core.acknowledged([item], producer)
    write_all(core)
    return was_full == ["b"] and not core.memory.full()


def a_full_topic_is_not_drained(made: Any, _: Flags) -> bool:
    """A topic has its share of the memory, and a hold that is announced."""
    core = _announced(made)
    give(core, "tail", *(row_of(id_, key="b2") for id_ in range(2, 8)))
    return _reads_tails_only(core)


def a_full_topic_does_not_join(made: Any, _: Flags) -> bool:
    """A catch-up is done, and its topic has its share of the memory: the tail does not read it along."""
    core = core_of(made)
    give(core, "tail", heavy=("b",))
    give(core, "list", *(row_of(id_) for id_ in range(1, 7)))
    return not core.next_read().joins


BOUNDS = (
    a_hold_that_got_a_claim_is_not_let_go,
    holds_that_are_passed_over_stop_no_other,
    a_retraction_is_written_once,
    a_hold_that_stops_during_its_announcement_is_not_read,
    a_message_of_a_hold_that_stopped_is_not_sent_again,
    a_hold_is_drained_while_it_gets_messages,
    what_was_given_up_is_let_go_below_a_hold_of_its_topic,
    a_hold_with_an_unwritten_claim_is_not_empty,
    a_page_of_a_hold_that_ended_stays,
    a_closed_topic_holds_what_comes_when_all_of_it_was_given_up,
    a_row_with_an_unwritten_claim_is_not_dropped,
    an_announced_page_is_read_once,
    a_pause_has_a_longest_length,
    failures_of_one_try_count_once,
    a_move_is_taken_back,
    a_topic_moves_while_rows_are_locked,
    a_topic_that_has_moved_is_sent,
    rows_are_bounded,
    a_topic_has_its_share_of_bytes,
    a_full_topic_is_not_drained,
    a_full_topic_does_not_join,
)
