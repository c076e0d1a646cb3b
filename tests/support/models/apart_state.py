"""The state of the model of a topic read apart: who takes part, what each session knows, and what is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

LOSS, ORDER, TWICE, STUCK = "LOSS", "ORDER", "TWICE", "STUCK"
NOBODY = -1
PAGE = 2
Ids = frozenset[int]
NONE: Ids = frozenset()


@dataclass(frozen=True, slots=True)
class Variant:
    """Who takes part and what may happen; the other defaults are what the product does."""

    topics: str = "AAAB"
    """The topic of each message, in the order of their positions."""
    transactions: tuple[int, ...] = (3, 1)
    """Messages of each, in the order in which they commit. The first has committed when the relay starts."""
    bad: Ids = NONE
    sessions: int = 2
    deaths: int = 0
    backs: int = 0
    """How many times a session goes back to what is recorded."""
    failures: int = 0
    """How many times Kafka refuses a message of A, so that a producer ends with what is on the wire."""
    of_list: int = 1
    """Messages of a page of the list."""
    takes_from_living: bool = True
    least_floor: bool = True
    """Whether the least progress of all parts is recorded, or that of the part that a batch is of."""
    open_list_is_behind: bool = True
    waits_behind: bool = True
    """Whether new messages of A wait until its list is done."""
    joins_in_one_snapshot: bool = True
    claims_are_partial: bool = True
    """Whether a batch with claims is recorded as partial, too."""
    compares: bool = True
    """Whether a session that goes on from a floor leaves out what has a publication."""
    passes_over_drained: bool = True
    of_drain: int = 9
    """Messages of a page of a drain. Only the last page is recorded before anything else is read."""
    whole_topic: bool = False
    """Whether A is parked as a whole: what was drained is not remembered."""
    waits_for_lists: bool = True
    """Whether a whole topic is drained only while no list of it is open."""
    waits_above_floors: bool = True
    """Whether it is drained only when it is read up to a snapshot."""
    care_ends_at_seen: bool = True
    """Whether the list of a refused topic brings it as far as what was visible as the message was read."""
    drains_record_reading: bool = True
    """Whether a drain records how far the lane is read, the floor of all parts, or what was recorded before."""


class Progress(NamedTuple):
    """What all was visible, as far as it is published; `partial`: some that was not is published, too."""

    seen: Ids = NONE
    partial: bool = False


class Part(NamedTuple):
    """Topic A while it is read apart: from `base` by a list up to `target`; without a target it is level."""

    base: Progress
    target: Ids | None
    left: tuple[int, ...] | None = None
    """The list, once it is made."""


class Page(NamedTuple):
    """What was read; `of_part`: of topic A apart. `before` is its part's progress before it."""

    rows: tuple[int, ...]
    of_part: bool
    before: Progress
    after: Progress
    seen: Ids = NONE
    """What was visible as it was read, or as its list was begun."""


class Batch(NamedTuple):
    """What was produced together."""

    rows: tuple[int, ...]
    progress: Progress
    claims: Ids = NONE
    seen: Ids = NONE
    is_drain: bool = False
    is_whole: bool = False
    """Whether it is the last page of a drain."""


class Session(NamedTuple):
    """One session; its number is its epoch."""

    at: str = "out"
    rest: Progress = Progress()
    part: Part | None = None
    ahead: tuple[tuple[int, bool], ...] = ()
    """The next messages of the list, once they are read, and whether each waited then."""
    pages: tuple[Page, ...] = ()
    secured: bool = False
    joins: bool = False
    """Whether the part is one with the rest when its pages are produced."""
    parked: bool = False
    behind: bool = False
    """Whether the lane was not read since it was taken: its keys are not drained."""
    drained: Ids = NONE
    recorded: Progress = Progress()
    wire: tuple[Batch, ...] = ()
    arrived: int = 0

    @property
    def runs(self) -> bool:
        return self.at == "loop"

    @property
    def is_quiet(self) -> bool:
        return not self.pages and not self.wire


class State(NamedTuple):
    """Everything at one moment."""

    sessions: tuple[Session, ...]
    commits: int = 1
    owner: int = NOBODY
    progress: Progress = Progress()
    published: Ids = NONE
    waiting: Ids = NONE
    parked: bool = False
    requested: bool = False
    fixed: bool = False
    seen: Ids = NONE
    deaths: int = 0
    backs: int = 0
    failures: int = 0
    unclean: bool = False
    wrong: frozenset[str] = frozenset()
