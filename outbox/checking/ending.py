"""Warns of half messages that a check ended without a COMMIT, as RocketMQ's producer logs them.

Logged when the transaction has committed. A process that dies in between, or whose connection is lost during the
commit, has not logged what it may have done: the audit (outbox.event) is complete, the log is for people who watch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from outbox.checking.settling import Ended

log = logging.getLogger("outbox.checking")

MOST_LOGGED = 20
"""Half messages that are logged one by one, of those that end together."""
WORDS = {"ROLLED_BACK": "rolled back", "EXHAUSTED": "EXHAUSTED, an operator decides"}


def warn_of_ended(group: str, ended: Sequence[Ended]) -> None:
    """Log each of some half messages with its id, group, checks and reason, and how many more there are."""
    for one in ended[:MOST_LOGGED]:
        log.warning(
            "half message %d of group %s is %s after check %d: %s",
            one.id,
            group,
            WORDS.get(one.state, one.state),
            one.checks,
            one.reason or "no reason given",
        )
    if len(ended) > MOST_LOGGED:
        log.warning("%d more half messages of group %s ended like these", len(ended) - MOST_LOGGED, group)
