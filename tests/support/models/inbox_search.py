"""Searches the model of consumers."""

from __future__ import annotations

from tests.support.models.inbox_model import DEAD, LOST, RETRY, STUCK, State, start
from tests.support.models.inbox_replay_model import steps
from tests.support.models.inbox_variants import Inbox
from tests.support.models.search import Found, explore


def search(v: Inbox, until: str = "") -> Found:
    """Visit every reachable state, nearest first, until this is found wrong."""
    return explore(start(v), lambda state: steps(v, state), lambda state: _missing(v, state), until=until)


def _missing(v: Inbox, s: State) -> list[str]:
    """What is wrong with a state in which nothing more happens; what waits behind a dead message is an operator's."""
    parked = dict(s.parked)
    # Where the offset is set to zero meanwhile, a replay may leave what was skipped to the members.
    wanted = {*range(s.begins if v.rewinds else 0, v.messages), *s.replay.rows}
    wrong = [LOST] if wanted - {*s.effects, *parked, *s.aside} else []
    is_dead = DEAD in parked.values()
    if (s.held and not parked) or (parked and not is_dead) or RETRY in parked.values():
        wrong.append(STUCK)
    return wrong
