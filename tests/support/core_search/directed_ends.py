"""Short scripts for the safeguards of pages, writes, doubt and the end of a leadership."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outbox_relay.publisher.core.values import Page, Scope
from outbox_relay.publisher.snapshot import Snapshot
from tests.support.core_search.directed_calls import core_of, give, row_of, sends, write_all
from tests.support.core_search.directed_worlds import Flags
from tests.support.core_search.schedules import SMALL

KEY, TOPIC = Scope("key", "b", "b1"), Scope("topic", "b")


def a_page_that_comes_after_a_stop_is_not_taken(made: Any, _: Flags) -> bool:
    """The core stops while a tail is read: the next leader reads it."""
    core = core_of(made)
    read = core.next_read()
    core.stop()
    core.add(Page(read, (row_of(1),), Snapshot(5, 5), is_flushed=True))
    return not core.to_send()


def a_page_of_a_hold_that_stopped_stays_in_the_table(made: Any, _: Flags) -> bool:
    """An operator pauses a topic while a page of its hold is read."""
    core = core_of(made, {TOPIC: 1})
    core.holds.release(TOPIC)
    write_all(core)
    while (read := core.next_read()).kind == "tail":
        core.add(Page(read, (), Snapshot(5, 5), is_flushed=True))
    core.pause("b")
    core.add(Page(read, (row_of(1),), Snapshot(5, 5)))
    return not core.to_send()


def a_fault_in_a_page_keeps_what_is_behind_it(made: Any, _: Flags) -> bool:
    """A page of a key's hold has 1 and 2. No record can be made of 1."""
    core = core_of(made, {KEY: 1})
    core.holds.release(KEY)
    write_all(core)
    give(core, "drain", row_of(1, is_faulty=True), row_of(2))
    return not core.to_send() and set(core.holds.claims) == {1}


def a_failed_claim_takes_no_announcement_back(made: Any, _: Flags) -> bool:
    """1 of a topic's hold is out. 2 fails, and waits for the topic, because no more keys may be held."""
    core = core_of(made, {TOPIC: 1}, replace(SMALL, holds=0))
    core.holds.release(TOPIC)
    write_all(core)
    give(core, "drain", row_of(1))
    [(item, producer)] = core.to_send()
    give(core, "tail", row_of(2, key="b2", is_faulty=True))
    claims, meanwhile = write_all(core), core.next_write()
    core.acknowledged([item], producer)
    published, last = write_all(core), write_all(core)
    return (
        [claim.scope for claim in claims.claims] == [TOPIC]
        and (meanwhile is None or not meanwhile.retract)
        and TOPIC in (*published.retract, *(last.retract if last else ()))
    )


def a_write_secures_the_pages_that_it_covers_only(made: Any, _: Flags) -> bool:
    """2 is read while a write is under way. The write may have been flushed before 2 was committed."""
    core = core_of(made)
    give(core, "tail", row_of(1), is_flushed=False)
    write = core.next_write()
    give(core, "tail", row_of(2), is_flushed=False)
    core.written(write)
    return sends(core) == [1]


def _behind_the_barrier_of_a_list(made: Any) -> Any:
    """Begin a list, and flush a write behind its first page, which is sent."""
    core = core_of(made)
    give(core, "tail", heavy=("b",))
    give(core, "list", row_of(1), has_more=True, is_flushed=False)
    write_all(core)
    core.to_send()
    return core


def a_list_waits_for_one_barrier(made: Any, _: Flags) -> bool:
    """A barrier was flushed after a list was begun: what the rest of the list is of cannot be forgotten."""
    core = core_of(made)
    give(core, "tail", heavy=("b",))
    give(core, "list", row_of(1), has_more=True, is_flushed=False)
    has_waited = not core.to_send()
    write_all(core)
    first = sends(core)
    give(core, "list", row_of(2), is_flushed=False, is_ours=True)
    return has_waited and first == [1] and sends(core) == [2]


def a_former_leader_sends_no_page_of_its_list(made: Any, _: Flags) -> bool:
    """A barrier was flushed after a list was begun. Then nobody knows whether the leadership goes on."""
    core = _behind_the_barrier_of_a_list(made)
    give(core, "list", row_of(2), is_flushed=False)
    return not core.to_send()


def a_new_topic_of_a_list_waits_for_a_barrier(made: Any, _: Flags) -> bool:
    """2 is of a topic that was read after the list's barrier. 3 comes behind it."""
    core = _behind_the_barrier_of_a_list(made)
    read = core.sources.list_read("b", 1, 1)
    core.add(Page(read, (row_of(2),), Snapshot(5, 5), has_more=True, is_ours=True, has_new_topics=True))
    core.add(Page(read, (row_of(3),), Snapshot(5, 5), has_more=True, is_ours=True))
    has_waited = not core.to_send()
    write_all(core)
    return has_waited and sends(core) == [2, 3]


def an_idle_leader_writes_nothing(made: Any, _: Flags) -> bool:
    """Tails are empty, and nothing happens."""
    core = core_of(made)
    was_idle = core.next_write() is None
    give(core, "tail", is_flushed=False)
    return was_idle and core.next_write() is None


def what_is_new_is_in_no_doubt(made: Any, _: Flags) -> bool:
    """A predecessor died. It may have sent what the first tail has, but not what the next one has."""
    core = core_of(made, is_unclean=True)
    give(core, "tail", row_of(1))
    give(core, "tail", row_of(2))
    return [item.in_doubt for item, _producer in core.to_send()] == [True, False]


def an_expired_message_is_not_sent(made: Any, _: Flags) -> bool:
    """1 has expired. It holds nothing."""
    core = core_of(made)
    give(core, "tail", row_of(1)._replace(is_expired=True), row_of(2))
    return sends(core) == [2] and set(core.holds.claims) == {1} and not core.holds.by_scope


def what_a_producer_lost_waits_while_its_topic_is_paused(made: Any, _: Flags) -> bool:
    """1 is on the wire of a producer that ends after an operator has paused the topic."""
    core = core_of(made)
    give(core, "tail", row_of(1))
    [(_item, producer)] = core.to_send()
    core.pause("b")
    core.lost(producer)
    return not core.to_send() and core.holds.claims[1].in_doubt is True


def a_refusal_of_a_single_message_repeats_no_other_topic(made: Any, _: Flags) -> bool:
    """Topics a and b are on probation. 1 is refused; 2 of the other topic stays on the wire."""
    core = core_of(made)
    core.streams.suspect("a")
    core.streams.suspect("b")
    give(core, "tail", row_of(1), row_of(2, "a", "a1"))
    (first, producer), (second, _producer) = core.to_send()
    core.refused([first], producer)
    is_quiet = not core.to_send()
    core.acknowledged([second], producer)
    return is_quiet and core.streams.published == [second]


def a_pause_takes_what_is_queued(made: Any, _: Flags) -> bool:
    """1 is read when an operator pauses its topic, and not sent."""
    core = core_of(made)
    give(core, "tail", row_of(1))
    core.pause("b")
    return not core.to_send() and set(core.holds.claims) == {1}


def a_topic_is_sent_while_another_one_moves(made: Any, _: Flags) -> bool:
    """A write moves topic a."""
    core = core_of(made)
    core.set_count("a", 3)
    core.next_write()
    give(core, "tail", row_of(1))
    return sends(core) == [1]


def a_claim_without_a_key_waits_for_nothing(made: Any, _: Flags) -> bool:
    """1 has no key, and is on the wire. 2 has none either, and fails: it is written now."""
    core = core_of(made)
    give(core, "tail", row_of(1)._replace(key=None))
    core.to_send()
    give(core, "tail", row_of(2, is_faulty=True)._replace(key=None))
    write = core.next_write()
    return write is not None and [claim.row.id for claim in write.claims] == [2]


def a_stop_announces_nothing(made: Any, _: Flags) -> bool:
    """No page will be read any more, so nothing new may be in doubt for the next leader."""
    core = core_of(made, {KEY: 1})
    core.holds.release(KEY)
    core.stop()
    return core.next_write() is None


def the_floor_follows_what_is_settled(made: Any, _: Flags) -> bool:
    """1 is settled by a write, and 2 by the next one."""
    core = core_of(made)
    floors = []
    for id_ in (1, 2):
        give(core, "tail", row_of(id_), snapshot=Snapshot(5 + id_, 5 + id_))
        [(item, producer)] = core.to_send()
        core.acknowledged([item], producer)
        floors.append(write_all(core).floor)
    return floors == [Snapshot(6, 6), Snapshot(7, 7)]


def a_claim_keeps_the_leadership(made: Any, _: Flags) -> bool:
    """1 was sent to a partition that is silent. Until the table has the doubt, nobody else may lead."""
    core = core_of(made)
    give(core, "tail", row_of(1))
    core.to_send()
    core.silent("b", 0, 0.0)
    core.stop()
    was_done = core.is_done()
    write_all(core)
    return not was_done and core.is_done()


def a_leadership_is_clean_when_its_predecessors_rows_are_settled(made: Any, _: Flags) -> bool:
    """One begins clean, and has read nothing. The other one reads 1, which its predecessor may have sent."""
    core = core_of(made, is_unclean=True)
    give(core, "tail", row_of(1))
    [(item, producer)] = core.to_send()
    was_clean = core.is_clean()
    core.acknowledged([item], producer)
    write_all(core)
    return core_of(made).is_clean() and not was_clean and core.is_clean()


def failed_messages_wait_for_an_operator(made: Any, _: Flags) -> bool:
    """A new leader finds the holds of a key and of a topic. Only the topic may have recovered by itself."""
    core = core_of(made, {KEY: 1, Scope("topic", "a"): 2})
    for due in core.holds.due(0.0):
        core.holds.release(due)
    return bool(write_all(core).announce == (Scope("topic", "a"),))


def what_is_behind_a_waiting_message_waits(made: Any, _: Flags) -> bool:
    """3 and 5 of a key wait: 4 is behind 3."""
    core = core_of(made, {KEY: 3})
    give(core, "tail", row_of(5))
    give(core, "tail", row_of(4))
    return not core.to_send()


def a_fault_holds_its_key_although_new_messages_pass(made: Any, _: Flags) -> bool:
    """The hold of a key is nearly empty, and new messages pass it. Then 2 fails: 3 waits behind it."""
    core = core_of(made, {KEY: 1})
    core.holds.release(KEY)
    write_all(core)
    give(core, "drain", row_of(1))
    core.to_send()
    give(core, "tail", row_of(2, is_faulty=True))
    give(core, "tail", row_of(3))
    return not core.to_send() and set(core.holds.claims) == {2, 3}


def a_failed_message_is_sent_again_alone(made: Any, _: Flags) -> bool:
    """1 failed, and is drained on request: a refusal may cost no other topic."""
    core = core_of(made)
    give(core, "tail", row_of(1, is_faulty=True))
    write_all(core)
    core.holds.release(KEY)
    write_all(core)
    give(core, "drain", row_of(1))
    return [producer.is_single for _item, producer in core.to_send()] == [True]


ENDS = (
    what_is_behind_a_waiting_message_waits,
    a_fault_holds_its_key_although_new_messages_pass,
    a_failed_message_is_sent_again_alone,
    a_page_that_comes_after_a_stop_is_not_taken,
    a_page_of_a_hold_that_stopped_stays_in_the_table,
    a_fault_in_a_page_keeps_what_is_behind_it,
    a_failed_claim_takes_no_announcement_back,
    a_write_secures_the_pages_that_it_covers_only,
    a_list_waits_for_one_barrier,
    a_former_leader_sends_no_page_of_its_list,
    a_new_topic_of_a_list_waits_for_a_barrier,
    an_idle_leader_writes_nothing,
    what_is_new_is_in_no_doubt,
    an_expired_message_is_not_sent,
    what_a_producer_lost_waits_while_its_topic_is_paused,
    a_refusal_of_a_single_message_repeats_no_other_topic,
    a_pause_takes_what_is_queued,
    a_topic_is_sent_while_another_one_moves,
    a_claim_without_a_key_waits_for_nothing,
    a_stop_announces_nothing,
    the_floor_follows_what_is_settled,
    a_claim_keeps_the_leadership,
    a_leadership_is_clean_when_its_predecessors_rows_are_settled,
    failed_messages_wait_for_an_operator,
)
