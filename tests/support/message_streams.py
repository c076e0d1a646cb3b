"""A random stream of what happens to an outbox: writers that commit late, halves that are decided late, delays, checks.

The relay is the stream itself: it publishes what is visible and COMMITTED, now and then twice.
"""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from typing import Any

from psycopg.types.json import Jsonb

from tests.support.export_runs import Rows, plain
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.publications import record, snapshot
from tests.support.stopped_lanes import set_aside

BODIES: tuple[bytes | None, ...] = (
    None, b"", b'{"a": 1}', b'{"a": 1} and more', b"5 apples", b"5", b"\xff\x00", b"[1, [2, null]]", b"not json",
    b'{"a": 1, "a": 2}', "ü€😀".encode(), json.dumps("ü€😀").encode(), b"1,2", b"1],[2",
)  # fmt: skip
LIVE_COMMITTED = """
    SELECT m.position FROM outbox.message m
    LEFT JOIN outbox.waiting w ON w.id = m.id
    WHERE m.state = 'COMMITTED' AND w.id IS NULL
        AND NOT EXISTS (SELECT FROM outbox.publication p WHERE p.positions @> ARRAY[m.position])
    ORDER BY m.position
"""
MESSAGES = """
    SELECT m.id, m.message_id::text, m.topic, m.key, m.body, m.body AS body_json, m.headers, m.order_key, m.selector,
           m.queue, m.lane::integer, m.tags, m.index_keys, m.producer_group, m.transaction_id, m.checker, m.biz_type,
           m.biz_id, m.traceparent, m.state,
           CASE WHEN m.state = 'COMMITTED' AND p.at IS NOT NULL THEN 'PUBLISHED' ELSE m.state END,
           pg_temp.micros(m.born_at), pg_temp.micros(m.decided_at), pg_temp.micros(m.deliver_at),
           pg_temp.micros(m.deliver_before),
           CASE WHEN m.state = 'COMMITTED' THEN pg_temp.micros(p.at) END,
           CASE WHEN m.state = 'COMMITTED' THEN p.partition END, CASE WHEN m.state = 'COMMITTED' THEN p."offset" END,
           m.position, (SELECT count(*)::integer FROM outbox.event e WHERE e.id = m.id AND e.kind = 'check'),
           m.remark, m.xid::text::bigint
    FROM outbox.message m
    LEFT JOIN LATERAL (
        SELECT b.published_at AS at, u.partition, u."offset"
        FROM outbox.publication b, unnest(b.positions, b.partitions, b.offsets) u (position, partition, "offset")
        WHERE u.position = m.position ORDER BY b.published_at, u."offset" LIMIT 1
    ) p ON true
"""
EVENTS = """
    SELECT xid::text::bigint, id, message_id::text, pg_temp.micros(happened_at), kind, from_state, to_state, answer,
           actor, reason
    FROM outbox.event
"""
PUBLICATIONS = """
    SELECT u.position, u.partition, u."offset", pg_temp.micros(b.published_at), b.epoch, b.batch, b.xid::text::bigint
    FROM outbox.publication b, unnest(b.positions, b.partitions, b.offsets) u (position, partition, "offset")
"""
MICROS = """
    CREATE FUNCTION pg_temp.micros(t timestamptz) RETURNS bigint LANGUAGE sql AS
        'SELECT (extract(epoch FROM t) * 1000000)::bigint'
"""

BY_PARTITION = """
    SELECT array_agg(p.position ORDER BY p.position)
    FROM unnest(%s::bigint[]) p (position)
        JOIN outbox.partition r ON p.position >= r.lower AND p.position < r.upper
    GROUP BY r.lower ORDER BY r.lower
"""


class Stream:
    """Things happen to one outbox; the same seed makes the same things happen."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.random = random.Random(seed)
        self._stack, self.dsn = ExitStack(), dsn
        self.conn = self._stack.enter_context(connect(dsn))
        self._open: list[Connection] = []
        self._batch, self._number = 0, 0

    def close(self) -> None:
        self._stack.close()

    def step(self) -> str:
        """Let one thing happen; answer its name."""
        weights = {
            self.send: 4, self.open_writer: 3, self.end_writer: 2, self.half: 3, self.decide: 3, self.decide_late: 2,
            self.check: 3, self.delay: 2, self.cancel: 1, self.release: 2, self.publish: 4, self.publish_again: 1,
            self.die: 1, self.retry: 1,
        }  # fmt: skip
        [act] = self.random.choices(list(weights), list(weights.values()))
        act()
        return act.__name__

    def settle(self) -> None:
        """End all writers and publish what there is."""
        while self._open:
            self.end_writer()
        self.publish()

    def send(self) -> None:
        with self.conn.transaction():
            for _ in range(self.random.randint(1, 5)):
                self._insert(self.conn)

    def open_writer(self) -> None:
        """A transaction that has written, and goes on for a while."""
        if len(self._open) < 4:
            conn = self._begin()
            self._insert(conn)
            if self.random.random() < 0.3:
                self._insert(conn, state="UNKNOWN", producer_group="g")
            self._open.append(conn)

    def end_writer(self) -> None:
        if self._open:
            conn = self._open.pop(self.random.randrange(len(self._open)))
            conn.execute("COMMIT" if self.random.random() < 0.8 else "ROLLBACK")
            conn.close()

    def half(self) -> None:
        for _ in range(2):
            self._insert(self.conn, state="UNKNOWN", producer_group="g", checker="c", biz_id="b")

    def decide(self) -> None:
        self._decide(self.conn)

    def decide_late(self) -> None:
        """A decision whose transaction goes on for a while."""
        if len(self._open) < 4:
            conn = self._begin()
            self._decide(conn)
            self._open.append(conn)

    def check(self) -> None:
        self.conn.execute(
            "INSERT INTO outbox.event (id, message_id, kind, answer, actor) "
            "SELECT id, message_id, 'check', 'UNKNOWN', 'c' "
            "FROM outbox.message WHERE state = 'UNKNOWN' ORDER BY random() LIMIT 2"
        )

    def delay(self) -> None:
        self._insert(self.conn, deliver_at="2999-01-01")

    def cancel(self) -> None:
        self._change(self.conn, "CANCELLED", "m.id IN (SELECT w.id FROM outbox.waiting w)")

    def release(self) -> None:
        """What the relay does when a delayed message falls due."""
        with self.conn.transaction():
            gone = self.conn.execute(
                "DELETE FROM outbox.waiting WHERE id = (SELECT min(id) FROM outbox.waiting) RETURNING id"
            ).fetchone()
            if gone:
                self.conn.execute(
                    "UPDATE outbox.message SET xid = pg_current_xact_id(), position = nextval('outbox.position') "
                    "WHERE id = %s",
                    gone,
                )

    def publish(self) -> None:
        found = [row[0] for row in self.conn.execute(LIVE_COMMITTED).fetchall()]
        self._record(found[: self.random.randint(1, 20)])

    def publish_again(self) -> None:
        """At least once: the same positions at later offsets."""
        rows = self.conn.execute(
            "SELECT positions FROM outbox.publication ORDER BY random() LIMIT 1"
        ).fetchone()
        if rows:
            self._record(rows[0])

    def die(self) -> None:
        unpublished = "NOT EXISTS (SELECT FROM outbox.publication p WHERE p.positions @> ARRAY[m.position])"
        found = self.conn.execute(
            f"SELECT m.id FROM outbox.message m WHERE m.state = 'COMMITTED' AND {unpublished} ORDER BY m.id LIMIT 1"
        ).fetchall()
        set_aside(self.conn, *(row[0] for row in found))

    def retry(self) -> None:
        self._change(self.conn, self.random.choice(["COMMITTED", "SKIPPED"]), "m.state = 'DEAD'")

    def _begin(self) -> Connection:
        conn = self._stack.enter_context(connect(self.dsn))
        conn.execute("BEGIN")
        return conn

    def _insert(self, conn: Connection, **columns: Any) -> None:
        self._number += 1
        pick = self.random.choice
        columns["headers"] = pick([None, Jsonb({}), Jsonb({"h": "1", "empty": "", "null": None})])
        columns["tags"] = pick([[], ["a"], ["a", "b,c"]])
        columns["index_keys"] = pick([[], ["k1", "k2"]])
        columns["order_key"] = pick([None, b"o"])
        insert(conn, f"topic{self._number % 3}", pick([None, "k", b"\x00\xff"]), pick(BODIES), **columns)

    def _decide(self, conn: Connection) -> None:
        state = self.random.choice(["COMMITTED", "ROLLED_BACK", "EXHAUSTED"])
        self._change(conn, state, "m.state = 'UNKNOWN'")

    def _change(self, conn: Connection, state: str, condition: str) -> None:
        conn.execute(
            f"UPDATE outbox.message SET state = %s, remark = 'why' WHERE id = "
            f"(SELECT m.id FROM outbox.message m WHERE {condition} ORDER BY m.id LIMIT 1 FOR UPDATE SKIP LOCKED)",
            [state],
        )

    def _record(self, positions: list[int]) -> None:
        """A batch for each partition that holds some of them, as a relay writes them."""
        for (each,) in self.conn.execute(BY_PARTITION, [positions]).fetchall():
            self._batch += 1
            offset = 100 * self._batch
            record(self.conn, each, seen=snapshot(self.conn), batch=self._batch, offset=offset)

    def truth(self) -> dict[str, Rows]:
        """What the warehouse's tables must hold, by one plain query each."""
        with connect(self.dsn) as conn:
            conn.execute(MICROS)
            read = [plain(conn.execute(text).fetchall()) for text in (MESSAGES, EVENTS, PUBLICATIONS)]
        read[0] = plain((*row[:5], _json(row[5]), *row[6:]) for row in read[0])
        return dict(zip(("message_history", "transaction_events", "publications"), read, strict=True))


def _json(body: bytes | None) -> str | None:
    try:
        text = body.decode() if body is not None else ""
        json.loads(text)
    except ValueError:
        return None
    return text


def differences(found: dict[str, Rows], truth: dict[str, Rows]) -> str:
    """What is only in one of them, per table."""
    lines = []
    for name, rows in truth.items():
        lines += [f"{name} lacks {row}" for row in rows if row not in found[name]]
        lines += [f"{name} has {row}" for row in found[name] if row not in rows]
        if len(rows) != len(found[name]):
            lines.append(f"{name} has {len(found[name])} rows, not {len(rows)}")
    return "\n".join(lines)
