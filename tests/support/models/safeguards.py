"""Which test of the real code fails when a safeguard is taken away that a broken variant of a model does without.

By model and variant: test files below tests/, and names in them. Models say which safeguards are needed; these tests
say that the product has them. Several models share a safeguard, and so its test.
"""

from __future__ import annotations

from collections.abc import Mapping

Tests = Mapping[str, tuple[str, ...]]

_P = "integration/publisher/"
_U = "unit/publisher/"
_HANDS = f"{_P}test_hand_over.py::"
_LEADING = f"{_P}test_leading.py::"
_KEYS = f"{_P}test_parked_keys.py::"

LANES: Tests = {
    "gives back before the record": (
        f"{_HANDS}test_lanes_are_given_back_only_when_what_is_on_the_wire_is_recorded",
    ),
    "takes from the living": (f"{_HANDS}test_of_two_takers_of_a_lane_one_has_it",),
    "a barrier that checks no epoch": (f"{_HANDS}test_a_barrier_is_refused_when_one_lane_is_lost",),
    "a record that does not name its lanes": (
        f"{_HANDS}test_what_was_acknowledged_of_a_lost_lane_is_left_to_its_new_owner",
    ),
    "reads progress before it locks": (
        f"{_P}test_taken_progress.py::test_floors_are_read_when_the_lock_of_taking_is_held",
    ),
    "reads a lane on after it is given back": (
        f"{_HANDS}test_what_is_behind_the_last_batch_is_published_by_the_next_owner",
    ),
    "publishes a lane on after it is given back": (  # its variant: "a page is taken after a stop"
        f"{_U}test_core_search.py::test_the_search_catches_the_core_without_a_safeguard",
    ),
    "records what is not acknowledged": (f"{_KEYS}test_claims_wait_for_the_acks_in_front",),
    "starts behind what is in doubt": (f"{_LEADING}test_a_standby_takes_the_lanes_of_a_killed_leader",),
    "does not notice lost lanes without traffic": (f"{_HANDS}test_a_lost_lane_is_noticed_without_traffic",),
    "keeps its lanes beside an older one": (
        f"{_LEADING}test_the_younger_of_two_relays_that_have_lanes_gives_its_back",
    ),
}
