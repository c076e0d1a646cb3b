"""The model of consumers: every interleaving keeps the promises, and each safeguard taken away breaks one."""

from __future__ import annotations

import pytest

from tests.support.models.inbox_model import LOST, ORDER, STUCK, TWICE
from tests.support.models.inbox_search import search
from tests.support.models.inbox_variants import Inbox

SOUND: dict[str, Inbox] = {
    "a failure beside a zombie": Inbox(),
    "two failures and two pumps": Inbox(failures=2, pumps=2),
    "a death": Inbox(deaths=1),
    "two deaths and two failures": Inbox(deaths=2, failures=2),
    "an offset set to zero": Inbox(rewinds=1, moves=2),
    "transactions that PostgreSQL ends": Inbox(timeouts=2),
    "a death and a rebalance beside two pumps": Inbox(messages=2, deaths=1, moves=1, pumps=2),
    "a drop and an offset set to zero": Inbox(messages=2, drops=1, rewinds=1),
    "a drop beside deaths and time-outs": Inbox(messages=2, drops=1, rewinds=1, deaths=1, timeouts=1),
    "a drop beside handlers that commit too early": Inbox(messages=2, drops=1, rewinds=1, early_commits=1),
    "followers that are parked together": Inbox(gathers=True),
    "followers, and a death": Inbox(gathers=True, deaths=1),
    "followers, an offset set to zero, and a time-out": Inbox(gathers=True, rewinds=1, moves=1, timeouts=1),
    "followers beside two failures and two pumps": Inbox(gathers=True, failures=2, pumps=2),
    "handlers that commit too early": Inbox(messages=2, early_commits=1, deaths=1, pumps=2),
    "a replay of what was skipped": Inbox(replays="missing", replayed=2, messages=4),
    "a replay of what was skipped, and deaths": Inbox(
        replays="missing", replayed=2, messages=3, failures=0, deaths=2
    ),
    "a replay, an offset set to zero, and a time-out": Inbox(
        replays="missing", replayed=2, messages=3, failures=0, rewinds=1, timeouts=1, moves=1
    ),
    "a replay of what was applied, beside two pumps": Inbox(replays="again", replayed=2, messages=3, pumps=2),
    "a replay of what was applied, and deaths": Inbox(
        replays="again", replayed=2, messages=3, failures=0, deaths=2
    ),
}

BROKEN: dict[str, tuple[Inbox, str]] = {
    "no inbox": (Inbox(has_inbox=False, failures=0), TWICE),
    "a member that does not wait for the transaction of another": (Inbox(waits_for_takers=False), ORDER),
    "a member that does not wait, and dies": (Inbox(waits_for_takers=False, failures=0, deaths=1), LOST),
    "a member that does not read held keys": (Inbox(reads_held=False), ORDER),
    "a held key that is read and not locked": (Inbox(locks_held=False), STUCK),
    "parking without an inbox row": (Inbox(parks_with_inbox=False), TWICE),
    "an offset that passes a failure before it is parked": (Inbox(stores_when="failed", deaths=1), LOST),
    "a pump that takes any row of a key": (Inbox(pump_takes="any", pumps=2), ORDER),
    "a pump that deletes the parked row later": (Inbox(pump_deletes="later", deaths=1), TWICE),
    "a pump that releases the key later": (Inbox(pump_releases="later", deaths=1), STUCK),
    "a handler that commits a retry too early": (Inbox(early_commits=1, pump_marks=False), TWICE),
    "a drop without a floor": (Inbox(drops=1, rewinds=1, failures=0, has_floor=False), TWICE),
    "a floor that is raised after the drop": (
        Inbox(drops=1, rewinds=1, failures=0, floor_first=False),
        TWICE,
    ),
    "a drop that does not wait for older transactions": (
        Inbox(messages=1, drops=1, rewinds=1, moves=1, failures=0, drop_waits=False),
        TWICE,
    ),
    "a failure that is forgotten below the floor": (Inbox(drops=1, parks_above_floor=False), LOST),
    "followers that are parked behind a key that is not held": (
        Inbox(gathers=True, gathers_held=False),
        STUCK,
    ),
    "followers that are parked in another order": (Inbox(gathers=True, gathers_in_order=False), ORDER),
    "a replay that lets its messages run at once": (
        Inbox(replays="again", replayed=1, messages=3, failures=0, replay_waits=False),
        ORDER,
    ),
    "a replay that holds no key": (
        Inbox(replays="again", replayed=2, messages=2, failures=0, pumps=2, replay_holds=False),
        ORDER,
    ),
    "a replay that notes how far it is later": (
        Inbox(replays="again", replayed=1, messages=2, deaths=1, replay_notes="later"),
        TWICE,
    ),
    "a replay without rows of the inbox": (
        Inbox(replays="missing", replayed=1, messages=2, failures=0, rewinds=1, replay_inserts=False),
        TWICE,
    ),
    "a pump that reads before it locks": (Inbox(pump_reads="before"), STUCK),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", SOUND)
def test_no_interleaving_of_consumers_breaks_a_promise(name: str) -> None:
    found = search(SOUND[name])
    assert found.wrong == {}
    assert found.states > 1_000
    assert found.ends, "the search ended nowhere"


@pytest.mark.parametrize("name", BROKEN)
def test_a_safeguard_of_consumers_taken_away_is_missed(name: str) -> None:
    inbox, wrong = BROKEN[name]
    assert wrong in search(inbox, wrong).wrong
