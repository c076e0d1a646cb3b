"""A stage for the checker: half messages of any age, an asker that says what it is told to, and what came of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from outbox.checking import GroupRound
from outbox.checking.finding import enqueue, settings
from outbox.checking.rounds import Step
from outbox.checking.settling import expire
from outbox.checking.transaction import transaction
from outbox.records import MessageView
from tests.support.plain_inserts import Connection, connect

GROUP = "payments"


class Half(NamedTuple):
    """A half message that was written: its row's id and its message id."""

    id: int
    message_id: str


class Event(NamedTuple):
    """One line of a message's audit."""

    kind: str
    to_state: str | None
    answer: str | None
    actor: str
    reason: str | None


class Script:
    """An asker that answers what `say` answers, and remembers whom it was asked about."""

    def __init__(self, say: Callable[[MessageView], Any] | Any = None, *, missing: str | None = None) -> None:
        self.say = say if callable(say) else lambda _: say
        self.nobody = missing
        self.asked: list[MessageView] = []
        self._lock = threading.Lock()

    @property
    def ids(self) -> list[int]:
        """Whom it was asked about, in order."""
        return [view.id for view in self.asked]

    def missing(self, view: MessageView) -> str | None:
        return self.nobody

    def ask(self, view: MessageView, deadline: float) -> Any:
        with self._lock:
            self.asked.append(view)
        return self.say(view)


class CheckStage:
    """One database with half messages, and rounds over them."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.conn: Connection = connect(dsn)

    def close(self) -> None:
        """Close the connection."""
        self.conn.close()

    def half(self, group: str = GROUP, *, age: float = 10.0, **columns: Any) -> Half:
        """Write a half message that was born `age` seconds ago."""
        values: dict[str, Any] = {"topic": "t", "key": b"k", "body": b"b", "producer_group": group, **columns}
        names = list(values)
        row = self.conn.execute(
            sql.SQL(
                "INSERT INTO outbox.message (state, born_at, {}) VALUES "
                "('UNKNOWN', clock_timestamp() - %(age)s * interval '1 s', {}) RETURNING id, message_id::text"
            ).format(
                sql.SQL(", ").join(map(sql.Identifier, names)),
                sql.SQL(", ").join(map(sql.Placeholder, names)),
            ),
            {**values, "age": age},
        ).fetchone()
        assert row is not None
        return Half(*row)

    def halves(self, count: int, group: str = GROUP, *, age: float = 10.0) -> None:
        """Write many at once."""
        self.conn.execute(
            "INSERT INTO outbox.message (state, born_at, topic, key, body, producer_group) SELECT 'UNKNOWN', "
            "clock_timestamp() - %s * interval '1 s', 't', 'k', 'b', %s FROM generate_series(1, %s)",
            [age, group, count],
        )

    def past(self, seconds: float) -> None:
        """Let so many seconds pass for what counts down past a half message's age."""
        self.conn.execute("UPDATE outbox.alarm SET since = since - %(s)s * interval '1 s'", {"s": seconds})
        self.conn.execute(
            "UPDATE outbox.pending_check SET unanswered_since = unanswered_since - %(s)s * interval '1 s'",
            {"s": seconds},
        )

    def group(self, name: str = GROUP, **settings: Any) -> None:
        """Register a group, or change it."""
        names = list(settings)
        self.conn.execute(
            "INSERT INTO outbox.producer_group (name) VALUES (%s) ON CONFLICT DO NOTHING", [name]
        )
        if names:
            self.conn.execute(
                sql.SQL("UPDATE outbox.producer_group SET {} WHERE name = %s").format(
                    sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(n)) for n in names)
                ),
                [*settings.values(), name],
            )

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """One step's connection."""
        with connect(self.dsn) as conn:
            yield conn

    def round(self, asker: Any, group: str = GROUP, **options: Any) -> GroupRound:
        """A group's checker."""
        return GroupRound(group, asker, **options)

    def check(self, asker: Any, group: str = GROUP, **options: Any) -> Step:
        """Let a new checker of the group do once what is due."""
        made = self.round(asker, group, **options)
        try:
            return made.run_once(self.connection)
        finally:
            made.stop()

    def enqueue(self, group: str = GROUP) -> None:
        """Walk over the whole group as its checker does, and claim nothing."""
        with self.connection() as conn:
            now = transaction(conn, "enqueues", settings(group))
            found = transaction(conn, "enqueues", enqueue(now.settings))
            transaction(conn, "enqueues", expire(now.settings, found.over))

    def make_due(self) -> None:
        """Let the time come at which each half message is asked about next."""
        self.conn.execute("UPDATE outbox.pending_check SET due_at = statement_timestamp()")

    def state(self, half: Half) -> str:
        """A message's state."""
        return str(self.one("SELECT state FROM outbox.message WHERE id = %s", half.id))

    def due_in(self, half: Half) -> float | None:
        """Seconds until a half message is asked about; None when that is not planned."""
        found = self.one(
            "SELECT extract(epoch FROM due_at - clock_timestamp())::float8 FROM outbox.pending_check WHERE id = %s",
            half.id,
        )
        return None if found is None else float(found)

    @contextmanager
    def postponing(self, half: Half, seconds: float) -> Iterator[None]:
        """Demand that a statement of this block lets a half message be due in so many seconds from then."""
        began = self.one("SELECT clock_timestamp()")
        yield
        due = self.one("SELECT due_at FROM outbox.pending_check WHERE id = %s", half.id)
        ended = self.one("SELECT clock_timestamp()")
        assert began <= due - timedelta(seconds=seconds) <= ended

    def checks(self, half: Half) -> int | None:
        """How many checks are used up; None when it is not pending."""
        found = self.one("SELECT checks FROM outbox.pending_check WHERE id = %s", half.id)
        return None if found is None else int(found)

    def events(self, half: Half) -> list[Event]:
        """A message's audit since its birth."""
        rows = self.conn.execute(
            "SELECT kind, to_state, answer, actor, reason FROM outbox.event WHERE id = %s "
            "AND to_state IS DISTINCT FROM 'UNKNOWN' ORDER BY happened_at",
            [half.id],
        ).fetchall()
        return [Event(*row) for row in rows]

    def alarms(self, group: str = GROUP) -> dict[str, str]:
        """A group's alarms with their details."""
        return dict(
            self.conn.execute(
                "SELECT kind, detail FROM outbox.alarm WHERE producer_group = %s", [group]
            ).fetchall()
        )

    def decide(self, half: Half, state: str) -> int:
        """Decide as a producer does."""
        return self.conn.execute(
            "UPDATE outbox.message SET state = %s WHERE id = %s AND state = 'UNKNOWN'", [state, half.id]
        ).rowcount

    def one(self, query: str, *values: Any) -> Any:
        """One value, or None where there is no row."""
        row = self.conn.execute(query.encode(), values).fetchone()
        return None if row is None else row[0]
