"""Which test of the real code fails when a safeguard is taken away that a broken variant of a model does without.

By model and variant: test files below tests/, and names in them. Models say which safeguards are needed; these tests
say that the product has them. Several models share a safeguard, and so its test.
"""

from __future__ import annotations

from collections.abc import Mapping

Tests = Mapping[str, tuple[str, ...]]

_P, _U = "integration/publisher/", "unit/publisher/"
_SHARED = f"{_P}test_shared_lanes.py::"
_APART = f"{_P}test_read_apart.py::"
_PARKED_APART = f"{_P}test_parked_apart.py::"
_DRAINED = f"{_P}test_drained_keys.py::"
_LOCKS = f"{_P}test_drains_and_locks.py::"
_KEYS = f"{_P}test_parked_keys.py::"
_TOPICS = f"{_P}test_parked_topics.py::"
_DRAINS = f"{_U}test_topic_drains.py::"
_FRONT = f"{_P}test_in_front_of_parked.py::"

LANES: Tests = {
    "gives back before the record": (
        f"{_SHARED}test_a_lane_is_given_back_only_when_what_is_on_the_wire_is_recorded",
    ),
    "takes from the living": (f"{_SHARED}test_of_two_takers_of_a_lane_one_has_it",),
    "a barrier that checks no epoch": (f"{_SHARED}test_a_barrier_is_refused_when_one_lane_is_lost",),
    "a record that does not name its lanes": (
        f"{_SHARED}test_what_was_acknowledged_of_a_lost_lane_is_left_to_its_new_owner",
    ),
    "reads progress before it locks": (
        f"{_P}test_taken_progress.py::test_progress_is_read_when_the_lock_of_taking_is_held",
    ),
    "reads a lane on after it is given back": (
        f"{_SHARED}test_what_is_behind_a_lanes_last_batch_is_published_by_its_next_owner",
    ),
    "publishes a lane on after it is given back": (  # its variant: "a page is taken after a stop"
        f"{_U}test_core_search.py::test_the_search_catches_the_core_without_a_safeguard",
    ),
    "records what is not acknowledged": (f"{_KEYS}test_claims_wait_for_the_acks_in_front",),
    "starts behind what is in doubt": (f"{_SHARED}test_the_lanes_of_a_killed_relay_are_taken_by_the_other",),
    "does not notice lost lanes without traffic": (f"{_SHARED}test_a_lost_lane_is_noticed_without_traffic",),
}
_FLOOR = (
    f"{_APART}test_crashes_while_topics_are_apart_lose_and_double_nothing",
    f"{_P}test_fair_topics.py::test_a_failed_delivery_beside_a_backlog_loses_and_reorders_nothing",
)
APART: Tests = {
    "the progress of one part is recorded": _FLOOR[:1],
    "one part is recorded, and a producer lost": _FLOOR[1:],
    "an open list counts as published": _FLOOR[:1],
    "new messages do not wait behind the list": (
        f"{_APART}test_new_messages_of_a_topic_with_a_backlog_wait_behind_it",
    ),
    "a topic joins without a common snapshot": (
        f"{_APART}test_a_topic_is_one_with_the_others_again_when_it_has_caught_up",
    ),
    "the others read a refused topic, too": (
        f"{_P}test_refused_apart.py::test_a_message_that_is_refused_inside_a_backlog_repeats_no_recorded_one",
    ),
    "a floor is taken for all that is published": (
        f"{_APART}test_a_successor_publishes_nothing_twice_of_a_backlog_that_is_taken",
    ),
    "a batch with claims is not partial": (
        f"{_PARKED_APART}test_a_successor_repeats_nothing_of_a_key_that_was_held_beside_a_backlog",
    ),
    "a drain next to a list records what was recorded before": (
        f"{_PARKED_APART}test_what_is_drained_before_the_backlog_is_read_is_not_repeated",
    ),
    "the same with one topic": (f"{_DRAINED}test_a_clean_restart_after_a_drain_publishes_nothing_again",),
    "what was drained is published by its list": (
        f"{_PARKED_APART}test_what_is_drained_is_not_published_again_by_a_list_that_was_made_before",
    ),
    "what has committed since a refused message was read is taken for listed": (
        f"{_U}test_relay_turns.py::test_a_careful_list_ends_at_what_was_visible_as_its_message_was_read",
    ),
    "a topic is drained while its list is open": (
        f"{_DRAINS}test_a_topic_is_not_drained_while_a_list_may_hold_it",
        f"{_DRAINS}test_a_flood_puts_the_drain_of_its_topic_off",
    ),
    "a topic is drained at a floor": (f"{_DRAINS}test_a_topic_is_not_drained_while_a_list_may_hold_it",),
}
PARKING: Tests = {
    "deletes up to a place": (
        f"{_DRAINED}test_a_message_that_commits_late_below_a_drained_one_is_published",
    ),
    "lists after it has announced": (
        f"{_DRAINED}test_what_joins_a_key_after_a_take_over_is_not_listed_for_a_paused_drain",
    ),
    "claims in the next barrier": (f"{_KEYS}test_claims_wait_for_the_acks_in_front",),
    "claims without a lock": (
        f"{_KEYS}test_a_take_over_between_check_and_claim_refuses_the_claim",
        f"{_KEYS}test_a_lane_is_not_taken_while_a_claim_is_written",
    ),
    "keys in memory only": (f"{_KEYS}test_parked_keys_outlive_their_relay",),
    "a drain with claims on the wire": (
        f"{_TOPICS}test_a_backlog_of_a_paused_topic_holds_up_no_other_and_is_drained_in_order",
    ),
    "a drain recorded under another epoch": (
        f"{_DRAINED}test_what_became_of_a_drain_is_refused_under_another_epoch",
    ),
    "a lock between two pages holds the key again": (
        f"{_LOCKS}test_a_lock_while_a_page_of_a_drain_is_recorded_holds_up_nothing_later",
    ),
    "a lane read behind the last page of a drain": (
        f"{_DRAINED}test_a_relay_that_is_to_stop_reads_nothing_behind_the_last_page_of_a_drain",
        f"{_LOCKS}test_a_stopped_lane_waits_for_the_last_page_of_a_drain_of_its_keys",
    ),
    "a time-out that leaves nothing in doubt": (
        f"{_LOCKS}test_a_drain_whose_record_is_withheld_is_done_again_by_the_next_session",
    ),
    "a drain that leaves nothing in doubt": (
        f"{_DRAINED}test_a_drain_that_fails_leaves_what_was_in_doubt_in_doubt",
    ),
}
TOPIC_PARKING: Tests = {
    "claims before what is in front of them has arrived": PARKING["claims in the next barrier"],
    "topics in memory only": (f"{_TOPICS}test_a_paused_topic_outlives_its_relay_and_its_successors_know_it",),
    "a drain with claims on the wire": PARKING["a drain with claims on the wire"],
    "a lane read behind the last page of a drain": PARKING["a lane read behind the last page of a drain"],
    "a topic that flows as soon as it is open": (
        f"{_TOPICS}test_a_backlog_of_a_paused_topic_holds_up_no_other_and_is_drained_in_order",
    ),
    "a drain that publishes messages of a parked key": (
        f"{_TOPICS}test_a_message_that_fails_as_its_topic_goes_on_parks_its_own_key",
    ),
    "a drain that leaves out what fails": (
        f"{_TOPICS}test_a_message_that_fails_as_its_topic_goes_on_parks_its_own_key",
    ),
    "a record under another epoch": LANES["a record that does not name its lanes"],
    "a drain of a key that forgets its request where the topic is closed": (
        f"{_P}test_leaderless.py::test_a_key_whose_partition_is_silent_while_it_is_drained_keeps_its_request",
    ),
    "a drain that is given up with the key that it parked": (
        f"{_P}test_drains_given_up.py::test_a_key_that_was_parked_by_a_page_that_is_given_up_is_drained_in_order",
    ),
    "a drain that moves what is in front of its parked key": (
        f"{_FRONT}test_a_message_in_front_of_one_that_parked_its_key_is_published_with_its_topic",
    ),
    "what is given up counts as published": (
        f"{_P}test_leaderless.py::test_what_a_silent_partition_has_is_held_in_doubt_and_the_rest_goes_on",
    ),
    "newer messages flow before what was given up": (
        f"{_U}test_leaderless.py::test_what_is_not_acknowledged_waits_for_its_topic_in_order",
    ),
}
_CHANGES = f"{_U}test_topic_changes.py::"
MOVING: Tests = {
    "a change used with messages on the wire": (
        f"{_CHANGES}test_a_change_is_used_when_nothing_of_the_topic_is_on_the_wire",
    ),
    "lanes published by what was known before they were taken": (
        f"{_P}test_repartition.py::test_a_key_does_not_go_back_with_its_lane",
    ),
    "an older look-up brought after a newer one": (
        f"{_CHANGES}test_a_look_up_that_began_earlier_takes_no_key_back",
    ),
}
