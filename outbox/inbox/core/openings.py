"""Partitions on the way from their assignment until they are read: who asks what, and when a question is repeated.

    the thread that polls    Question     a partition was assigned, or has to be opened again
    the thread that asks     Opening      what Kafka knows of partitions of a topic
    the keeper               Opened       where PostgreSQL lets them begin

Each step may end with `Unanswered` instead: the partitions that it names are asked for again, each after its own pause,
and the others of the question go on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from outbox.backoff import Backoff
from outbox.inbox.core.partitions import Pauses, TopicPart
from outbox.inbox.messages import Source
from outbox.inbox.starts import Known, Start

FIRST_PAUSE, LAST_PAUSE = 0.2, 10.0


@dataclass(frozen=True, slots=True)
class Question:
    """Partitions of one topic that wait to be opened."""

    topic: str
    parts: tuple[int, ...]
    ticket: int
    """Of their assignment."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Partitions of one topic that were assigned, with what Kafka knows of them."""

    topic: str
    kafka_id: str
    known: dict[int, Known]
    initial: dict[int, int] | None
    """Where the group begins if PostgreSQL has no position of it in this topic: Kafka's offsets, if there are any.

    They are stored for all partitions at once. From then on a partition without a position is one that is new, or whose
    position was lost. None: Kafka did not state where all partitions end, so the group cannot begin there.
    """
    origin: str
    """What `initial` is, in words."""
    ticket: int


@dataclass(frozen=True, slots=True)
class Opened:
    """Where these partitions are read from."""

    opening: Opening
    source: Source
    starts: dict[int, Start]
    generations: dict[int, int]
    server: int
    """The number of the server that knew this; see `StoredOffset`."""
    suspects: dict[int, set[int]]
    """By partition that the member before has not given back, the offsets whose runs had begun; see `suspects`."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Partitions that cannot be opened now: ask again later."""

    questions: Sequence[Question]
    reason: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """Another server of PostgreSQL has taken over, and all partitions are closed: ask again where they begin."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether Kafka knows the member in its group; None: no reply. Also known: one that cannot join, without topics."""

    is_known: bool | None


@dataclass(slots=True)
class _Place:
    ticket: int
    due: float = 0.0
    is_asked: bool = False
    pauses: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE, LAST_PAUSE))


class Waiting:
    """The partitions that are assigned and not open yet. Not thread-safe."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._places: dict[TopicPart, _Place] = {}
        self._ticket = 0
        self.stopped: dict[TopicPart, str] = {}
        """Partitions that are assigned and not read, and why: nobody asks for them again."""

    def add(self, places: Iterable[TopicPart]) -> None:
        """Note partitions that were assigned; what is still on its way for an earlier assignment is void."""
        self._ticket += 1
        for place in places:
            self.stopped.pop(place, None)
            self._places[place] = _Place(self._ticket)

    def remove(self, place: TopicPart) -> None:
        """Forget a partition: it is open, or it was given away."""
        self._places.pop(place, None)
        self.stopped.pop(place, None)

    def stop(self, place: TopicPart, reason: str) -> None:
        """Leave a partition unread until it is assigned again."""
        self.remove(place)
        self.stopped[place] = reason

    def due(self, now: float) -> list[Question]:
        """Return what is to be asked now; it is due again once it was replied to, and not while its topic is paused."""
        asked: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for (topic, part), place in self._places.items():
            if not place.is_asked and place.due <= now and not self._pauses.has(topic):
                place.is_asked = True
                asked[(topic, place.ticket)].append(part)
        return [Question(topic, tuple(parts), ticket) for (topic, ticket), parts in asked.items()]

    def answer(self, place: TopicPart, ticket: int) -> bool:
        """Note a reply; return whether it is of the partition's latest assignment."""
        found = self._places.get(place)
        if found is None or found.ticket != ticket:
            return False
        found.is_asked = False
        return True

    def postpone(self, question: Question, now: float) -> None:
        """Ask again after a pause of each partition."""
        for part in question.parts:
            place = (question.topic, part)
            if self.answer(place, question.ticket):
                found = self._places[place]
                found.due = now + found.pauses.next()

    @property
    def places(self) -> list[TopicPart]:
        """The partitions."""
        return list(self._places)
