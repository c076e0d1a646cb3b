"""Tests that are of the former publisher, and run it; they go when it does."""

from __future__ import annotations

from collections.abc import Mapping

FORMER: Mapping[str, frozenset[str]] = {
    "test_alarms.py": frozenset(
        {
            "test_a_held_lane_is_sent_once_signed_and_without_its_body",
            "test_a_late_backlog_is_an_alarm_until_it_is_published",
            "test_an_alarm_is_sent_again_until_the_receiver_takes_it",
        }
    ),
    "test_batch_spans.py": frozenset(
        {
            "test_a_session_that_ends_ends_the_spans_of_what_it_did_not_record",
        }
    ),
    "test_cut_pages.py": frozenset(
        {
            "test_a_successor_begins_in_front_of_what_a_cut_page_left",
        }
    ),
    "test_drained_keys.py": frozenset(
        {
            "test_a_drain_waits_until_its_announcement_is_replicated",
            "test_a_key_stays_parked_at_the_next_message_that_fails",
            "test_a_lane_that_goes_on_after_a_stop_is_read_before_its_keys_are_drained",
            "test_a_message_that_commits_late_below_a_drained_one_is_published",
            "test_a_paused_owner_cannot_unpark_a_key",
            "test_a_relay_that_is_to_stop_reads_nothing_behind_the_last_page_of_a_drain",
            "test_the_drain_of_a_hot_key_ends",
            "test_what_became_of_a_drain_is_refused_under_another_epoch",
            "test_what_joins_a_key_after_a_take_over_is_not_listed_for_a_paused_drain",
        }
    ),
    "test_drains_and_locks.py": frozenset(
        {
            "test_a_clean_stop_ends_the_announcement_of_a_drain_that_was_put_off",
            "test_a_drain_whose_record_is_withheld_is_done_again_by_the_next_session",
            "test_a_lock_of_a_key_that_is_being_drained_does_not_stop_the_relay",
            "test_a_lock_while_a_page_of_a_drain_is_recorded_holds_up_nothing_later",
            "test_a_message_cannot_be_given_up_while_its_drain_is_announced",
            "test_a_stopped_lane_waits_for_the_last_page_of_a_drain_of_its_keys",
        }
    ),
    "test_drains_given_up.py": frozenset(
        {
            "test_a_key_that_was_parked_by_a_page_that_is_given_up_is_drained_in_order",
            "test_what_is_acknowledged_of_a_page_that_is_given_up_comes_once",
        }
    ),
    "test_drains_in_trouble.py": frozenset(
        {
            "test_a_drain_that_is_never_acknowledged_ends_without_the_producer_of_the_others",
            "test_a_lane_that_goes_on_next_to_an_endless_backlog_drains_its_keys",
            "test_what_is_drained_in_a_lane_that_stopped_too_early_does_not_come_again",
        }
    ),
    "test_expired_messages.py": frozenset(
        {
            "test_a_successor_without_the_claim_finds_it_again",
            "test_one_that_expires_while_it_is_held_leaves_its_key_in_the_drain",
            "test_the_trial_of_a_lane_is_the_message_behind_those_that_have_expired",
        }
    ),
    "test_fair_topics.py": frozenset(
        {
            "test_a_lane_that_stops_beside_a_backlog_repeats_nothing_when_it_goes_on",
            "test_a_message_is_published_before_the_older_backlog_of_another_topic",
            "test_lanes_set_aside_beside_a_backlog_repeat_nothing_when_they_go_on",
            "test_lanes_that_another_relay_takes_beside_a_backlog_repeat_nothing",
        }
    ),
    "test_floods.py": frozenset(
        {
            "test_a_flood_by_one_transaction_of_a_producer_stops_no_lane",
            "test_a_hot_key_that_fails_parks_its_topic_and_stops_no_lane",
            "test_an_operator_gives_a_flood_up_at_once",
        }
    ),
    "test_forbidden_topics.py": frozenset(
        {
            "test_a_relay_that_may_write_nothing_goes_on_once_it_may",
        }
    ),
    "test_in_doubt.py": frozenset(
        {
            "test_a_doubt_outlives_a_clean_stop",
            "test_a_retry_in_doubt_stays_announced_after_a_clean_stop",
            "test_what_a_killed_relay_may_have_published_does_not_become_dead",
            "test_what_an_unavailable_partition_may_have_taken_stays_in_doubt",
            "test_what_went_down_with_a_producer_does_not_become_dead",
        }
    ),
    "test_in_front_of_parked.py": frozenset(
        {
            "test_a_message_in_front_of_one_that_parked_its_key_is_published_with_its_topic",
            "test_a_topic_that_a_later_batch_has_parked_takes_what_an_earlier_one_waits_for",
            "test_one_in_front_that_fails_itself_joins_its_key_and_holds_what_is_between",
            "test_what_parks_a_key_is_logged_once_also_where_its_lane_gives_up",
        }
    ),
    "test_keys_of_parked_topics.py": frozenset(
        {
            "test_a_key_that_is_drained_during_a_pause_keeps_its_request",
            "test_a_locked_row_of_a_topic_holds_up_no_other_drain",
            "test_a_topic_goes_on_although_its_keys_hold_as_much_as_a_lane_may",
        }
    ),
    "test_lanes_locked.py": frozenset(
        {
            "test_a_frozen_session_that_holds_the_lanes_locks_is_named_and_outlived",
            "test_a_relay_that_waits_for_locks_of_the_lanes_stops_when_asked",
        }
    ),
    "test_relay_takeover.py": frozenset(
        {
            "test_a_takeover_in_the_middle_of_a_backlog_finds_the_rest_in_later_partitions",
            "test_a_takeover_that_stopped_in_a_backlog_repeats_nothing_that_is_recorded",
        }
    ),
}
"""By file, tests of what the former publisher does inside, until it goes: lanes that stop, drains, parked keys."""


def is_of_former(file: str, test: str) -> bool:
    """Return whether a test runs the former publisher."""
    return test in FORMER.get(file, ())
