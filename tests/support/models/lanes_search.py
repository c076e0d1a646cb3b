"""Searches the model of lanes that change hands."""

from __future__ import annotations

from tests.support.models.lanes_model import STUCK, Lane, State, Variant, start, steps, with_session
from tests.support.models.search import Found, explore


def search(v: Variant, until: str = "") -> Found:
    """Visit every reachable state, nearest first, until this is found wrong."""
    return explore(
        start(v),
        lambda state: steps(v, state),
        lambda state: [STUCK] if _is_stuck(v, state) else [],
        _reduced,
        until,
    )


def _is_stuck(v: Variant, s: State) -> bool:
    could = any(each.lives and not each.drains for each in s.sessions)
    owned = all(row.owned and s.sessions[row.epoch].lives for row in s.rows)
    is_split = len({row.epoch for row in s.rows}) > 1
    has_older = any(s.sessions[number].lives for number in v.older)
    return could and not (owned and s.seen == v.messages and (has_older or not is_split))


def _reduced(s: State) -> State:
    """Merge states that differ only in what can have no effect: repeated arrivals of the dead after a fault."""
    if s.clean:
        return s
    for number, session in enumerate(s.sessions):
        if session.at == "dead":
            lanes = []
            for n, lane in enumerate(session.lanes):
                arrived = max(lane.arrived, min(lane.sent, s.seen[n]))
                lanes.append(Lane() if arrived == lane.sent else Lane(sent=lane.sent, arrived=arrived))
            s = with_session(s, number, session._replace(lanes=(lanes[0], lanes[1])))
    return s
