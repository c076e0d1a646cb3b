"""A producer: a process that sends messages of all kinds until SIGTERM, and journals what it knows of each.

One line is written before each COMMIT, because the process may be killed in it: what is not journalled as committed
then may be there or not. What happens when the process dies:

- before the COMMIT of a half message was sent, or behind it: the half message is undecided, and never seen.
- before the COMMIT that decides or sends was sent: its line states that it may be there, and the number of its key is
  given to another message, which settles that it is not.
- after it: that number is never given again, which settles that it is there. The checker finds a half message's
  outcome.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import psycopg

from outbox import Message, Outbox
from outbox.errors import DecidedOtherwiseError
from outbox.statements import Statements
from outbox_relay.proving.history import Fate, SentMessage

SQL = Statements("outbox_relay/proving/prove.sql")
PROOF_GROUP = "outbox-prove"
KEYS = 40
ROLLED_BACK = 0.06
"""The share of transactions that the producer rolls back."""
JOINED, ASKED = 0.15, 0.10
"""The shares of half messages: decided in the business transaction, and left to the checker."""
RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class Work:
    """What one producer has to do, as its command line states in JSON. The database comes from OUTBOX_DSN."""

    topic: str
    producer: str
    seed: int
    rate: float
    """Transactions per second."""
    journal: str

    def as_argument(self) -> str:
        """Return the command line's one argument."""
        return json.dumps(asdict(self))


class Workload:
    """Sends messages on one connection, which it opens again whenever it breaks."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], work: Work, out: IO[str]) -> None:
        self._connect, self._work, self._out = connect, work, out
        self._outbox = Outbox(producer_group=PROOF_GROUP)
        self._chance = random.Random(f"{work.seed} {work.producer}")  # noqa: S311 (no secret)
        self._number = 0

    def run(self, stops: threading.Event) -> None:
        """Send at the rate asked for until it is asked to stop; one second of what was missed is made up for."""
        pause = 1 / self._work.rate
        while not stops.is_set():
            try:
                with self._connect() as conn:
                    due = time.monotonic()
                    while not stops.wait(max(0.0, due - time.monotonic())):
                        due = max(due + pause, time.monotonic() - 1)
                        self._transaction(conn)
            except (psycopg.OperationalError, psycopg.InterfaceError):
                stops.wait(RETRY_S)

    def _transaction(self, conn: psycopg.Connection[Any]) -> None:
        kind = self._chance.random()
        if kind < JOINED:
            self._joined(conn)
        elif kind < JOINED + ASKED:
            self._asked(conn)
        else:
            self._plain(conn)

    def _plain(self, conn: psycopg.Connection[Any]) -> None:
        """Lock the row of a key, count, send, commit."""
        key = f"k{self._chance.randrange(KEYS)}"
        counter = self._advance(conn, key)
        body = json.dumps({"counter": counter})
        sent = self._outbox.send(conn, Message(self._work.topic, key=key, body=body))
        self._end(conn, str(sent.message_id), key, counter, is_half=False)

    def _joined(self, conn: psycopg.Connection[Any]) -> None:
        """Send a half message; decide it in the transaction that counts."""
        key = f"k{self._chance.randrange(KEYS)}"
        half = self._prepare(conn, key, None)
        counter = self._advance(conn, key)
        try:
            self._outbox.commit(conn, half)
        except DecidedOtherwiseError:  # this process stood still for so long that the checker rolled it back
            conn.rollback()
            return
        self._end(conn, str(half.message_id), key, counter, is_half=True)

    def _asked(self, conn: psycopg.Connection[Any]) -> None:
        """Send a half message and commit its local transaction; the checker decides by that."""
        self._number += 1
        name = f"{self._work.producer}-{self._number}"
        half = self._prepare(conn, f"c{name}", name)
        is_kept = self._chance.random() >= 3 * ROLLED_BACK
        conn.execute(SQL["note_outcome"], {"id": name, "is_kept": is_kept})
        message_id, key = str(half.message_id), f"c{name}"
        if is_kept:
            self._note(Fate.UNKNOWN, message_id, key, None, is_half=True)
        else:
            self._note(Fate.ROLLED_BACK, message_id, key, None, is_half=True)
        conn.commit()
        if is_kept:
            self._note(Fate.COMMITTED, message_id, key, None, is_half=True)

    def _prepare(self, conn: psycopg.Connection[Any], key: str, biz_id: str | None) -> Any:
        message = Message(self._work.topic, key=key, body=json.dumps({"half": True}), biz_id=biz_id)
        half = self._outbox.prepare(conn, message)
        self._note(Fate.UNDECIDED, str(half.message_id), key, None, is_half=True)
        conn.commit()
        return half

    def _end(
        self, conn: psycopg.Connection[Any], message_id: str, key: str, counter: int, *, is_half: bool
    ) -> None:
        """Commit or roll back, and journal it: before COMMIT that it may be there, and afterwards what is certain."""
        if self._chance.random() < ROLLED_BACK:
            # A half message whose deciding transaction is rolled back stays undecided.
            fate = Fate.UNDECIDED if is_half else Fate.ROLLED_BACK
            self._note(fate, message_id, key, None, is_half=is_half)
            conn.rollback()
            return
        self._note(Fate.UNKNOWN, message_id, key, counter, is_half=is_half)
        conn.commit()
        self._note(Fate.COMMITTED, message_id, key, counter, is_half=is_half)

    @staticmethod
    def _advance(conn: psycopg.Connection[Any], key: str) -> int:
        row = conn.execute(SQL["advance"], {"key": key}).fetchone()
        if row is None:
            raise RuntimeError(f"no counter of key {key}")
        return int(row[0])

    def _note(self, fate: Fate, message_id: str, key: str, counter: int | None, *, is_half: bool) -> None:
        line = [fate, round(time.time(), 6), message_id, key, counter, is_half]
        self._out.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._out.flush()


def sent_messages(topic: str, lines: Iterable[str]) -> dict[str, SentMessage]:
    """Read journals: what is known of each message, by its id."""
    sent: dict[str, SentMessage] = {}
    for line in lines:
        fate, at, message_id, key, counter, is_half = json.loads(line)
        before = sent.get(message_id)
        # The time of a commit is that before it was sent, which the line before has.
        ending = before.ending if before is not None and fate == Fate.COMMITTED else at
        sent[message_id] = SentMessage(message_id, topic, key, Fate(fate), counter, ending, is_half)
    return sent


def main(argument: str) -> None:
    """Run as `python -m outbox_relay.proving.workload WORK`, until SIGTERM."""
    work = Work(**json.loads(argument))
    stops = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stops.set())

    def connect() -> psycopg.Connection[Any]:
        return psycopg.connect(
            os.environ["OUTBOX_DSN"], application_name="outbox prove producer", connect_timeout=5
        )

    with Path(work.journal).open("w", encoding="utf-8") as out:
        Workload(connect, work, out).run(stops)


if __name__ == "__main__":
    main(sys.argv[1])
