"""The checker as tests run it: a process of its own, and groups of half messages for it to look after."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

import psycopg
from psycopg import sql

from outbox import Message, Outbox
from outbox.records import HalfMessage
from tests.support.callback_peer import SECRET
from tests.support.relay_process import ENTRY, RelayProcess
from tests.support.waiting import wait_until


class CheckerProcess(RelayProcess):
    """One `outbox checker run`, started at once; killed at the end of its `with` block if it still runs."""

    def __init__(
        self,
        dsn: str,
        *options: str,
        ports: tuple[int, ...] = (),
        entry: Sequence[str] = (str(ENTRY),),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Run on a database; callbacks to these ports of the loopback are allowed, and queries by the same login."""
        allowed = [text for port in ports for text in ("--allow-callback", f"127.0.0.1:{port}")]
        super().__init__(
            dsn,
            "",
            *allowed,
            "--allow-network",
            "127.0.0.0/8",
            *options,
            entry=entry,
            service="checker",
            variables={"OUTBOX_CALLBACK_SECRET": SECRET, "OUTBOX_CALLBACK_DSN": dsn, **(variables or {})},
        )

    def wait_until_running(self) -> Self:
        """Wait until it is connected."""
        self.wait_for("connected")
        return self


class Groups:
    """Producer groups and half messages in a test's database, on one connection in autocommit."""

    def __init__(self, dsn: str) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True)

    def register(self, name: str, callback: dict[str, Any] | None, **settings: Any) -> None:
        """Register a group that is asked at once and every 0.2 s; settings are columns, durations text."""
        columns: dict[str, Any] = {
            "check_after": "0",
            "check_interval": "0.2 s",
            "check_timeout": "1 s",
            "callback": None if callback is None else json.dumps(callback),
            **settings,
        }
        self.conn.execute(
            "INSERT INTO outbox.producer_group (name) VALUES (%s) ON CONFLICT DO NOTHING", [name]
        )
        for column, value in columns.items():
            query = sql.SQL("UPDATE outbox.producer_group SET {} = %s WHERE name = %s")
            self.conn.execute(query.format(sql.Identifier(column)), [value, name])

    def prepare(
        self, group: str, count: int = 1, *, checker: str | None = None, check_after: float | None = None
    ) -> list[HalfMessage]:
        """Write half messages, one transaction for all; biz ids count from "0"."""
        outbox = Outbox(producer_group=group)
        messages = [
            Message("payments", body=b"x", checker=checker, biz_id=str(number)) for number in range(count)
        ]
        with self.conn.transaction():
            return [outbox.prepare(self.conn, message, check_after=check_after) for message in messages]

    def states(self, group: str) -> dict[str, int]:
        """How many of a group's messages are in each state."""
        rows = self.conn.execute(
            "SELECT state, count(*) FROM outbox.message WHERE producer_group = %s GROUP BY state", [group]
        )
        return dict(rows.fetchall())

    def wait_for(self, group: str, states: dict[str, int], *, seconds: float = 60.0) -> None:
        """Wait until a group's messages are in these states."""
        wait_until(lambda: self.states(group) == states, f"{group} is {states}", seconds=seconds)

    def events(self, half: HalfMessage) -> list[tuple[Any, ...]]:
        """What the audit says of a half message: kind, answer, new state, actor, reason."""
        return self.conn.execute(
            "SELECT kind, answer, to_state, actor, reason FROM outbox.event WHERE id = %s ORDER BY happened_at",
            [half.id],
        ).fetchall()

    def checks(self, group: str) -> int:
        """Checks that were used up by messages still pending."""
        row = self.conn.execute(
            "SELECT coalesce(sum(checks), 0) FROM outbox.pending_check WHERE producer_group = %s", [group]
        ).fetchone()
        assert row is not None
        return int(row[0])

    def alarm(self, group: str, kind: str) -> str | None:
        """The detail of an alarm, if it is raised."""
        row = self.conn.execute(
            "SELECT detail FROM outbox.alarm WHERE producer_group = %s AND kind = %s", [group, kind]
        ).fetchone()
        return None if row is None else str(row[0])

    def close(self) -> None:
        self.conn.close()
