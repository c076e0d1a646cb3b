"""The reader while listed rows change: random cancellations, decisions and releases between listing and reading.

A row on a list may have left it when its page is read: cancelled, or released to a later place. What is left of the
page must be read all the same, whatever bytes the rows that left would have filled.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from outbox_relay.publisher import polls
from outbox_relay.publisher.finder import POSITION, WAITING
from outbox_relay.publisher.upkeep import Delayed
from tests.support.bare_reader import Reading
from tests.support.plain_inserts import Connection, decide, insert

FAR = "2999-01-01"
# The last one is another one in each run; one id for it, since every test process collects for itself.
SEEDS = [*range(8), pytest.param(random.SystemRandom().randrange(10**6), id="any")]


class Story:
    """Random events on an outbox, one transaction each, and the half messages that are still undecided."""

    def __init__(self, conn: Connection, seed: int) -> None:
        self._conn, self.random = conn, random.Random(seed)
        self._halves: list[str] = []
        self._delayed = Delayed(conn)

    def send(self) -> None:
        """Write one message of any kind; most bodies are small, some fill a page."""
        chance = self.random
        body = "x" * chance.choice([0, 10, 10, 100, 400, 2_000])
        key = f"k{chance.randrange(6)}"
        delay = {"deliver_at": FAR} if chance.random() < 0.5 else {}
        if chance.random() < 0.2:
            half = insert(self._conn, "t", key, body, state="UNKNOWN", producer_group="g", **delay)
            self._halves.append(half)
        else:
            insert(self._conn, "t", key, body, **delay)

    def send_many(self) -> None:
        """Write more than a page in one transaction."""
        with self._conn.transaction():
            for _ in range(self.random.randint(6, 40)):
                self.send()

    def decide(self) -> None:
        """Decide a half message."""
        if self._halves:
            half = self._halves.pop(self.random.randrange(len(self._halves)))
            decide(self._conn, half, self.random.choice(["COMMITTED", "ROLLED_BACK"]))

    def cancel(self) -> None:
        """Cancel a run of delayed messages, as a campaign that is called off."""
        self._conn.execute(
            "UPDATE outbox.message SET state = 'CANCELLED' WHERE id = ANY (%s)", [self._waiting()]
        )

    def release(self) -> None:
        """Let a run of delayed messages fall due, and release them."""
        self._conn.execute(
            "UPDATE outbox.waiting SET due_at = clock_timestamp() WHERE id = ANY (%s)", [self._waiting()]
        )
        self._delayed.expect("-infinity")
        self._delayed.release(range(8))

    def _waiting(self) -> list[int]:
        rows = self._conn.execute("SELECT id FROM outbox.waiting ORDER BY id").fetchall()
        if not rows:
            return []
        first = self.random.randrange(len(rows))
        return [row[0] for row in rows[first : first + self.random.randint(1, 30)]]

    def happens(self, events: int) -> None:
        """Let so many things happen."""
        kinds = [self.send, self.send_many, self.decide, self.cancel, self.cancel, self.release]
        for _ in range(events):
            self.random.choice(kinds)()


@pytest.fixture
def reading(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    """A reader whose pages and lists are small, 5 rows or 600 bytes a page."""
    monkeypatch.setattr(polls, "AT_ONCE", 12)
    reading = Reading(database, page=5, page_bytes=600)
    yield reading
    reading.close()


@pytest.mark.feature("S-102")
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_that_leave_a_list_hide_and_double_no_others(
    reading: Reading, conn: Connection, seed: int
) -> None:
    story = Story(conn, seed)
    for _ in range(4):
        story.send_many()
    found: list[int] = []
    for _ in range(12):
        for _ in range(story.random.randrange(8)):
            if story.random.random() < 0.7:
                story.happens(1)
            found += [row[POSITION] for row in reading.turn() if row[WAITING] is None]
        story.happens(story.random.randrange(4))
    found += reading.read()
    rows = conn.execute(
        "SELECT m.position FROM outbox.message m WHERE m.state = 'COMMITTED' "
        "AND NOT EXISTS (SELECT FROM outbox.waiting w WHERE w.id = m.id) ORDER BY 1"
    ).fetchall()
    assert sorted(found) == [row[0] for row in rows], f"seed {seed}"
