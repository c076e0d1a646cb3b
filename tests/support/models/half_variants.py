"""What the model of half messages is asked: the product's ways, and each of its safeguards taken away."""

from __future__ import annotations

from tests.support.models.half_model import (
    APART,
    APART_LOCAL_FIRST,
    EXHAUSTED,
    HALF_TOO_LATE,
    JOINED,
    JOINED_FAILS,
    JOINED_RAISES,
    KEPT,
    KEPT_FAILS,
    ROLLED_BACK,
    UNJOINED,
    Variant,
)

TWO = "TWO VERDICTS"
GHOST = "MESSAGE WITHOUT BUSINESS"
LOST = "BUSINESS WITHOUT MESSAGE"
FEET = "UNDER ITS FEET"
EARLY = "BUSINESS BEFORE ITS HALF"
WAITS = "CHECKER WAITS"

SOUND: dict[str, Variant] = {
    "one database: half, join, write and commit": Variant(
        JOINED, nothing_found="rollback", checkers=2, policy=ROLLED_BACK, operator=True
    ),
    "  the listener says rollback": Variant(
        JOINED_FAILS, nothing_found="rollback", checkers=2, policy=ROLLED_BACK, operator=True
    ),
    "  the listener raises": Variant(
        JOINED_RAISES, nothing_found="rollback", checkers=2, policy=ROLLED_BACK, operator=True
    ),
    "  policy EXHAUSTED": Variant(
        JOINED, nothing_found="rollback", checkers=2, policy=EXHAUSTED, operator=True
    ),
    "  claims that nobody looks at": Variant(
        JOINED, nothing_found="rollback", checkers=2, policy=ROLLED_BACK, operator=True, claims=False
    ),
    "one database, no join, patient checker": Variant(UNJOINED, checkers=2, operator=True),
    "other database, half kept locked, patient checker": Variant(
        KEPT, other_database=True, checkers=2, policy=EXHAUSTED, operator=True
    ),
    "  the listener says rollback there": Variant(
        KEPT_FAILS, other_database=True, checkers=2, policy=EXHAUSTED, operator=True
    ),
    "other database, no lock, patient checker": Variant(
        APART, other_database=True, checkers=2, policy=EXHAUSTED, operator=True
    ),
    "  local transaction begun before the half": Variant(
        APART_LOCAL_FIRST, other_database=True, checkers=2, policy=EXHAUSTED, operator=True
    ),
}
"""By name, in the order of the table."""

BROKEN: dict[str, tuple[Variant, frozenset[str]]] = {
    "one database, no join, ROLLBACK when nothing is found": (
        Variant(UNJOINED, nothing_found="rollback"),
        frozenset({FEET}),
    ),
    "decided apart, no lock, ROLLBACK when nothing is found": (
        Variant(APART, other_database=True, nothing_found="rollback"),
        frozenset({FEET, LOST}),
    ),
    "decided apart, half kept locked, ROLLBACK when nothing is found": (
        Variant(KEPT, other_database=True, nothing_found="rollback"),
        frozenset({LOST}),
    ),
    "decided apart, policy ROLLBACK though nobody answers": (
        Variant(KEPT, other_database=True, policy=ROLLED_BACK),
        frozenset({LOST}),
    ),
    "settled without a compare-and-set": (
        Variant(JOINED, nothing_found="rollback", settle="blind", claims=False, checkers=2),
        frozenset({TWO, LOST, WAITS}),
    ),
    "settled by waiting for the lock": (
        Variant(JOINED, nothing_found="rollback", settle="wait"),
        frozenset({WAITS}),
    ),
    "COMMIT when nothing is found": (
        Variant(JOINED, nothing_found="commit"),
        frozenset({GHOST}),
    ),
    "local transaction ended before the half was stored": (
        Variant(HALF_TOO_LATE, other_database=True),
        frozenset({EARLY}),
    ),
}
"""By name, with what must be found wrong."""
