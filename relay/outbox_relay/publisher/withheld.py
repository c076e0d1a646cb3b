"""Claims and drains that are not written yet, because another session holds a row that they need.

An open transaction may hold the row of a lane for hours, or rows of outbox.waiting. The relay does not wait: it records
what was published without the lane (its publications do not speak for it), keeps the claims and drains of the lane
here, in their order, and tries again once a second, while all lanes flow. Schedules:

- The rows are free again: what is kept is written, and the next publication speaks for the lane again.
- The relay dies first, or stops: the lane has the progress of before. The successor reads on from there, claims the
  same messages again, and publishes again what lies behind, with the same message ids, in order.
- A drain is kept: its messages wait in the database, although they are published. No key of the lane is drained before
  what is kept is written; then they are deleted. The key stays parked, with its request, and is drained once more.
- A stop of the lane, or its going on, is written behind what is kept: a lane's row never states more than its claims.
- A producer is lost meanwhile: the lane goes on from what is acknowledged, and what is kept stays parked in memory.
- The process is paused past its lease: all of it carries the epoch, and matches no row.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from outbox.statements import array_text
from outbox_relay.publisher.lease import LOCK_WAIT_S, LeaseLostError
from outbox_relay.publisher.parked import Claim, Held, KeyDrain

Kept = Claim | KeyDrain
"""What is not written: that a message fails or is held, or what became of a drain."""


class RowsHeldError(LeaseLostError):
    """Claims or drains of these lanes are not written: another session holds a row, or the lanes are not ours."""

    def __init__(self, text: str, lanes: Iterable[int]) -> None:
        super().__init__(text)
        self.lanes = frozenset(lanes)


class Withheld:
    """What is not written yet, by lane."""

    def __init__(self) -> None:
        self._kept: dict[int, list[Kept]] = {}
        self._try_at = 0.0

    @property
    def lanes(self) -> Collection[int]:
        """The lanes of which publications do not speak."""
        return self._kept.keys()

    def begin(self, lanes: Iterable[int]) -> None:
        """Withhold from now on what lanes claim and drain."""
        for lane in lanes:
            self._kept.setdefault(lane, [])
        self._try_at = time.monotonic() + LOCK_WAIT_S

    def add(self, kept: Iterable[Kept]) -> None:
        """Keep claims and drains of such lanes. A key is not free with the record of its drain then."""
        for one in kept:
            self._kept[one.lane].append(replace(one, is_all=False) if isinstance(one, KeyDrain) else one)

    def parts(self, lane: int, most: int) -> Iterator[list[Claim] | KeyDrain]:
        """Yield what is kept of a lane, in its order: drains, and up to `most` claims together."""
        claims: list[Claim] = []
        for one in self._kept[lane]:
            if claims and (isinstance(one, KeyDrain) or len(claims) == most):
                yield claims
                claims = []
            if isinstance(one, KeyDrain):
                yield one
            else:
                claims.append(one)
        if claims:
            yield claims

    def restore(self, held: Held, lanes: frozenset[int]) -> None:
        """Park in memory what is claimed and not written; a lane that reads such a message again passes over it."""
        for lane in lanes & self._kept.keys():
            for one in self._kept[lane]:
                if isinstance(one, Claim):
                    held.drained[one.position] = lane
                    if one.head is not None and one.number is not None:
                        held.park(one.head.key, one.number, one.position)

    def due(self, *, now: bool = False) -> list[int]:
        """Return the lanes to try again: all of them a second after the last try, or `now`."""
        if not self._kept or not (now or time.monotonic() >= self._try_at):
            return []
        self._try_at = time.monotonic() + LOCK_WAIT_S
        return list(self._kept)

    def end(self, lane: int) -> None:
        """Forget a lane: all of it is written, or the lane is another relay's."""
        self._kept.pop(lane, None)


def claim_values(claims: Collection[Claim], doubtful: Mapping[int, bool]) -> dict[str, Any]:
    """Return claims as the arrays that `claim` and `record_claims` take.

    Args:
        claims: those of a batch, or of several.
        doubtful: by id, whether Kafka may have the message.
    """
    heads = [(claim, claim.head) for claim in claims if claim.head is not None]
    return {
        "locked": array_text({claim.lane for claim in claims}),
        "ids": array_text(claim.id for claim in claims),
        "message_ids": [claim.message_id for claim in claims],
        "reasons": [claim.reason for claim in claims],
        "numbers": [claim.number for claim in claims],
        "places": array_text(claim.position for claim in claims),
        "doubtful": [doubtful[claim.id] for claim in claims],
        "head_numbers": array_text(claim.number or 0 for claim, _ in heads),
        "heads": array_text(claim.id for claim, _ in heads),
        "head_lanes": array_text(claim.lane for claim, _ in heads),
        "topics": [head.key[1] for _, head in heads],
        "queues": [head.key[2] for _, head in heads],
        "order_keys": [head.order_key for _, head in heads],
        "errors": [head.error for _, head in heads],
    }
