"""Finding overdue half messages: which groups have any, and one group's, page by page.

Schedules of `enqueue`:

- The process dies: what was committed stays, the next pass finds the rest.
- Two checkers scan the same page: the second's INSERT finds the row (waiting, at most 1 s, for the first's commit).
- The producer decides between our snapshot and our commit: the row is for a decided half message; the next claim
  removes it. Its lock is not checked here: the claim finds out who holds a half message past its delay.
- The checker does not ask (`asked=False`): nothing is noted, what is overdue is counted by its birth. What was noted
  before: removed by `tidy` when decided, and by `expire` when it is over.
- No checker was there for longer than the group's age, or a half message became visible only past it (a long or a
  prepared transaction): it is noted, and asked about, like a young one. What decides is the answer; see `settling`.
- The producer's transaction commits later than others with higher ids: the scan that starts where the last one found
  nothing young misses it, the scan of the whole group, every 10 s or so, finds it.
"""

from __future__ import annotations

from typing import NamedTuple

from outbox.checking.group_settings import LONGEST_S, NOTICED_AFTER, GroupSettings
from outbox.checking.transaction import SQL
from outbox.statements import Plan, Statement

MOST_TIDIED = 1000
"""Rows that `tidy` checks, once after each scan of a whole group."""


class Found(NamedTuple):
    """One page of a group's unsettled messages, in the order of their ids."""

    last: int | None
    """The highest id of the page; None when there was nothing."""
    rows: int
    """Messages in it, half or not; fewer than the page's size at the end of the group."""
    exhausted: int
    enqueued: int
    pending: int
    """Half messages in it that are past their first delay, noted or not."""
    first_young: int | None
    """The first half message that is not yet past the first delay."""
    overdue: int
    """Half messages that are due since `check_interval` and not being asked about."""
    over: list[int]
    """Half messages whose checks are used up: see `expire`."""
    unheard: list[int]
    """Half messages past the group's age that are overdue and not being asked about."""


class Now(NamedTuple):
    """A group's settings, and the database's time (its text, to be handed back to it)."""

    settings: GroupSettings
    time: str


def groups() -> Plan[list[str]]:
    """The groups that a checker may have something to do for; costs are by group, not by message."""
    return [name for (name,) in (yield Statement(SQL["groups"]))]


def settings(group: str) -> Plan[Now]:
    """Read a group's settings; a group that is not registered has the defaults."""
    ((time, *values),) = yield Statement(SQL["settings"], (group,))
    if values[0] is None:
        return Now(GroupSettings(group), time)
    after, interval, longest, timeout, checks, age, policy, workers = values
    found = GroupSettings(
        group,
        check_after=min(float(after), LONGEST_S),
        check_interval=min(float(interval), LONGEST_S),
        max_check_interval=min(float(longest), LONGEST_S),
        check_timeout=min(float(timeout), LONGEST_S),
        max_checks=int(checks),
        max_age=min(float(age), LONGEST_S),
        policy=str(policy),
        workers=int(workers),
    )
    return Now(found, time)


def enqueue(
    group: GroupSettings,
    after: int = 0,
    rows: int = 5000,
    *,
    asked: bool = True,
    overdue_after: float | None = None,
) -> Plan[Found]:
    """Scan one page of a group's half messages with ids above `after`, and note those past their first delay.

    With `asked=False`, for a checker that does not ask, none is noted: the notes would stay. Overdue is
    what is due since `overdue_after` seconds, `check_interval` by default.
    """
    ((last, seen, exhausted, enqueued, pending, young, overdue, over, unheard),) = yield Statement(
        SQL["enqueue"],
        (
            group.name,
            str(after),
            str(rows),
            repr(group.check_after),
            repr(group.max_age),
            str(group.max_checks),
            repr(group.check_interval if overdue_after is None else overdue_after),
            "true" if asked else "false",
            repr(min(group.check_interval, NOTICED_AFTER)),
        ),
    )
    return Found(last, seen, exhausted, enqueued, pending, young, overdue, over, unheard)


def tidy(group: GroupSettings) -> Plan[int]:
    """Remove notes of decided half messages that a checker left which is gone; how many."""
    rows = yield Statement(SQL["tidy"], (group.name, str(MOST_TIDIED), repr(group.check_interval)))
    return len(rows)
