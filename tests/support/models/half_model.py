"""A half message and everybody who may decide it, as a state machine without a server: who takes part, and the state.

One message, its row lock, its business write, and these actors, each of which may stop for ever between any two of
its steps:

    p        the producer: runs a program (below); may die at any point. Its sessions die after it, each in its own
             time, and a COMMIT that was on its way to another database may still land
    a, b     checkers: claim, ask (what is committed of the business), settle, commit; an answer may get lost
    e        the policy at exhaustion: decides, commits
    o        an operator: looks at the business, decides, commits

Time has no meaning here: what may become due is due. Claims never keep a second checker away, since a claim's lease
may run out while the first still asks. A row lock is held until its transaction ends; who waits for it goes on at
any time after that. Everything else is a switch of `Variant`, so that what is needed can be taken away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

UNBORN, UNKNOWN, COMMITTED, ROLLED_BACK, EXHAUSTED = "-", "U", "C", "R", "X"

# What a producer does. "end" commits the outbox's session, which is the business's as well when there is but one;
# "commit" and "withdraw" are verdicts, "end business" commits the session of another database.
UNJOINED = ("half", "end", "write", "commit", "end")
JOINED = ("half", "end", "join", "write", "commit", "end")
JOINED_FAILS = ("half", "end", "join", "write", "undo", "withdraw", "end")
JOINED_RAISES = ("half", "end", "join", "write", "abort")
APART = ("half", "end", "write", "end business", "commit", "end")
APART_LOCAL_FIRST = ("write", "half", "end", "end business", "commit", "end")
KEPT = ("half", "end", "join", "write", "end business", "commit", "end")
KEPT_FAILS = ("half", "end", "join", "write", "undo", "withdraw", "end")
HALF_TOO_LATE = ("write", "end business", "half", "end", "commit", "end")

VERDICTS = {"commit": COMMITTED, "withdraw": ROLLED_BACK}


@dataclass(frozen=True, slots=True)
class Variant:
    """Who takes part, and how; the defaults are what the product does."""

    program: tuple[str, ...]
    other_database: bool = False
    """Whether the business write has a session of its own (of another database, or of this one)."""
    nothing_found: str = "patient"
    """The answer about a business write that is not there: "patient" (UNKNOWN as long as a local transaction could
    still be running, else ROLLBACK), "rollback", or "commit"."""
    settle: str = "skip"
    """"skip" leaves a locked half alone, "wait" waits for its lock, "blind" decides without looking at the state."""
    claims: bool = True
    """Whether who settles looks whether the claim is still its own. Nothing depends on it but the count of checks."""
    checkers: int = 1
    rounds: int = 2
    policy: str | None = None
    """What exhaustion decides: ROLLED_BACK or EXHAUSTED; None: it never comes."""
    operator: bool = False
    deaths: bool = True
    losses: bool = True
    """Whether an answer may get lost: a time-out, an exception."""
    urgent: bool = False
    """Whether who waits for a lock goes on before anybody else takes a step, as on a real server, and at most one waits
    at a time, since a real server wakes two in any order."""


class Checker(NamedTuple):
    """One checker: what it does next, and the answer it carries."""

    at: str = "claim"
    answer: str = ""
    rounds: int = 0


class State(NamedTuple):
    """Everything at one moment."""

    message: str = UNBORN
    """The committed state of the row."""
    inserted: bool = False
    """Whether the producer has inserted the row and not committed it."""
    holder: str = ""
    mark: str = ""
    """The verdict that the lock's holder has written and not committed."""
    waiting: frozenset[str] = frozenset()
    business: bool = False
    written: bool = False
    """Whether the business write is made and not committed."""
    pc: int = 0
    alive: bool = True
    checkers: tuple[Checker, ...] = ()
    claim: str = ""
    """The checker that claimed it last, until that claim is settled."""
    policy: str = ""
    operator: Checker = Checker("")
    wrong: frozenset[str] = frozenset()


class Step(NamedTuple):
    """One step of one actor, and what it learned."""

    actor: str
    name: str
    outcome: str = ""

    def __str__(self) -> str:
        return f"{self.actor} {self.name}" + (f": {self.outcome}" if self.outcome else "")


def start(variant: Variant) -> State:
    """The state before anything happens."""
    return State(
        checkers=(Checker(rounds=variant.rounds),) * variant.checkers,
        policy="decide" if variant.policy else "",
        operator=Checker("look" if variant.operator else ""),
    )
