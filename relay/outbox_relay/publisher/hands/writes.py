"""PostgreSQL's side of writing: one flushed transaction for each `Write`, under the lanes' epoch.

A write of publications alone is one statement, and travels behind the next poll (ADR 8). All others lock the lanes'
rows first. Schedules. The process dies before the commit: nothing of it happened, and what was acknowledged is
published again. The result is unknown: the session ends, and its successor reads the tables. The lanes were taken: no
row, and the session ends. Another session holds a row that is needed: nothing is written, and it is tried again.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import psycopg

from outbox.statements import Statements, array_text
from outbox_relay.publisher.core.values import Claim, Scope, Write
from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.finder import LANE, MESSAGE_ID
from outbox_relay.publisher.hands.hold_rows import HoldRow, HoldRows, claim_values, raw_of, values_of
from outbox_relay.publisher.hands.published import records_of
from outbox_relay.publisher.hands.reads import Announced, Reads
from outbox_relay.publisher.leading import LockedRows
from outbox_relay.publisher.lease import ROW_WAIT_MS, Lease, LeaseLostError
from outbox_relay.publisher.lease import STATEMENTS as LANE_STATEMENTS
from outbox_relay.publisher.prepared import BOOL, INT2, INT8, TEXT, Call, Numbered, PreparedStatements, Rider
from outbox_relay.publisher.snapshot import Snapshot
from outbox_relay.text.logs import Log

log = Log("relay")

STATEMENTS = Statements("outbox_relay/publisher/hands/writes.sql")

HOLD_PAGE = 2_000
"""Messages of a hold that are announced together."""
TRY_AGAIN_S = 0.1
"""When a write is tried again that found a row held by another session."""

_TYPES = {
    **dict.fromkeys(("epoch", "batch", "lo", "hi", "after"), INT8),
    "owner": TEXT,
    "is_partial": BOOL,
}
_RECORD = Numbered.of(STATEMENTS["record"], _TYPES)
_BARRIER = Numbered.of(STATEMENTS["barrier"], _TYPES)
_INTEND = Numbered.of(
    Statements("outbox_relay/publisher/hands/batches.sql")["intend"],
    {**_TYPES, "first": INT2, "number": INT8, "shard": TEXT, "digest": TEXT},
)


@dataclass(slots=True)
class Writes:
    """Writes for a set of lanes that are ours."""

    conn: psycopg.Connection[Any]
    lease: Lease
    statements: PreparedStatements
    reads: Reads
    holds: HoldRows
    errors: dict[int, Unpublishable]
    """By id, why a message failed."""
    floor: Snapshot
    """The last one that was written, or with which this began."""
    unrequested: set[Scope] = field(default_factory=set)
    """Holds that failed again: their requests are over."""
    announced_before: bool = True
    """Whether an earlier owner's announcements may be in the table: their messages are not marked as in doubt yet."""
    batch: int = 0
    try_at: float = 0.0
    is_refused: bool = False
    """Whether the last write found a row that another session holds."""
    locked: LockedRows = field(init=False)
    _dropped: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """Report rows that others hold on the same connection."""
        self.locked = LockedRows(self.conn)

    # Publications -------------------------------------------------------------------------------------------------

    def rider(self, write: Write) -> Rider | None:
        """Return a write of one publication as a statement to travel with a poll; None: it takes more than that."""
        if not write.published or write.intents or not self._is_plain(write):
            return None
        records = self._records(write)
        if len(records) != 1:
            return None
        self.floor = write.floor
        return Rider(Call(_RECORD, _RECORD.bind(records[0])))

    def land(self, rider: Rider) -> None:
        """Execute a rider unless it has travelled.

        Raises:
            LeaseLostError: another relay owns lanes of ours; nothing was written.
        """
        self._require_a_row(self.statements.finish(rider).command_tuples)

    def _records(self, write: Write) -> list[dict[str, Any]]:
        self.batch += 1
        ownership = self.lease.ownership(self.reads.lanes)
        of_all = {**ownership, "lanes": ownership["mine"], "batch": self.batch}
        return records_of(write, of_all, self.reads.partitions.bounds())

    # Everything else ----------------------------------------------------------------------------------------------

    def commit(self, write: Write) -> Write | None:
        """Write all of it in one transaction; return what was written, or None where another session holds a row.

        Raises:
            LeaseLostError: another relay owns lanes of ours; nothing was written.
        """
        if self._is_plain(write):
            return self.record(write)
        if time.monotonic() < self.try_at:
            return None
        return self._commit(write, self._records(write))

    def _is_plain(self, write: Write) -> bool:
        """Return whether there is nothing to write but publications, or a barrier."""
        others = (write.claims, write.announce, write.retract, write.let_go)
        return not (any(others) or self.has_more or any(item.taken_from for item in write.published))

    def record(self, write: Write) -> Write | None:
        """Write publications alone, for which no row is locked; they, or a barrier, are flushed.

        Intents of batches need one row; None: another session holds it.

        Raises:
            LeaseLostError: another relay owns lanes of ours; nothing was written.
        """
        records = self._records(write)
        if not records and not write.intents:
            self.barrier()
            return write
        if len(records) == 1 and not write.intents:
            self._insert(records)
        elif not self.statements.redo(lambda: self._in_one_commit(records, write)):
            self._put_off()
            return None
        self.floor = write.floor
        return write

    def _in_one_commit(self, records: Collection[dict[str, Any]], write: Write) -> bool:
        with self.conn.transaction():
            if not self._intend(write):
                return False
            self._insert(records)
        return True

    def _intend(self, write: Write) -> bool:
        """Write the intents of batches; return whether the row that this needs was free."""
        ended: tuple[int, ...] = write.ended
        for batch in write.intents:
            values = {
                "epoch": self.lease.epoch,
                "owner": self.lease.owner,
                "first": min(self.reads.lanes),
                "shard": str(self.lease.shard),
                "ended": array_text(ended),
                "number": batch.proof.number,
                "digest": batch.proof.digest,
                "ids": array_text(item.row.id for item in batch.items),
                "positions": array_text(item.row.position for item in batch.items),
                "partitions": array_text(item.partition for item in batch.items),
            }
            if not self.statements.run(Call(_INTEND, _INTEND.bind(values))).command_tuples:
                return False
            ended = ()
        return True

    def _insert(self, records: Collection[dict[str, Any]]) -> None:
        for record in records:
            self._require_a_row(self.statements.run(Call(_RECORD, _RECORD.bind(record))).command_tuples)

    @property
    def has_more(self) -> bool:
        """Whether there is something to write that the core does not know of."""
        return bool(self.reads.gone or self.unrequested)

    def barrier(self) -> None:
        """Make a flushed commit of nothing.

        Raises:
            LeaseLostError: another relay owns lanes of ours.
        """
        self._require_a_row(self.statements.run(self._barrier()).command_tuples)

    def _commit(self, write: Write, records: list[dict[str, Any]]) -> Write | None:
        rows, fails, claims = self._claims(write)
        try:
            done = self.statements.redo(lambda: self._together(write, records, rows, fails, claims))
        except psycopg.errors.LockNotAvailable:
            done = None
        if done is None:
            self.holds.drop([row.number for row in rows], is_over=False)
            self._put_off()
            return None
        self._log(write, rows, fails)
        for claim in write.claims:
            self.errors.pop(claim.row.id, None)
            # It waits behind the page that was announced, which is then not the last one (R5).
            if (
                announced := self.reads.announced.get(claim.scope)
            ) is not None and claim.scope not in done.announce:
                announced.has_more = True
        self.is_refused = False
        if not (records or write.claims or done.announce or done.retract or done.let_go or self.has_more):
            self.try_at = time.monotonic() + TRY_AGAIN_S  # other sessions hold the rows of all these holds
        self.holds.drop(self._dropped)
        self.reads.gone.clear()
        self.unrequested.clear()
        if records:
            self.floor = write.floor
        return done

    def _put_off(self) -> None:
        """Note that another session holds a row; the write is tried again soon.

        Raises:
            LeaseLostError: the lanes are another relay's.
        """
        self.try_at, self.is_refused = time.monotonic() + TRY_AGAIN_S, True
        self.barrier()
        self.locked.report(self.reads.lanes, "recording what fails, is held, or is released")

    def _log(self, write: Write, rows: Collection[HoldRow], fails: Mapping[int, tuple[int, str]]) -> None:
        """Log which holds have begun, and which messages failed again."""
        if not rows and not fails:
            return
        ids = {claim.row.id: raw_of(claim)[MESSAGE_ID] for claim in write.claims}
        for row in rows:
            log.error(
                f"{_named(row.scope)} parked", lane=row.lane, message_id=ids[row.head], reason=row.error
            )
        for number, (head, error) in fails.items():
            log.error(
                f"{_named(self.holds.scope_of[number])} stays parked", message_id=ids[head], reason=error
            )

    def _claims(self, write: Write) -> tuple[list[HoldRow], dict[int, tuple[int, str]], dict[str, Any]]:
        """Return the holds that begin, by number those at which a message fails again, and the claims' values."""
        rows: list[HoldRow] = []
        fails: dict[int, tuple[int, str]] = {}
        numbers: list[int | None] = []
        for claim in write.claims:
            if claim.scope.kind == "expired":
                numbers.append(None)
                continue
            raw = raw_of(claim)
            error = self._error(claim)
            number = self.holds.number(claim.scope, raw[LANE])
            if number is None:
                rows.append(self.holds.begin(claim.scope, raw, claim.row.id, error))
                number = rows[-1].number
            elif claim.is_failed:
                fails[number] = claim.row.id, error
            self.holds.note_place(number, claim.row.position)
            numbers.append(number)
        return rows, fails, claim_values(write.claims, numbers)

    def _error(self, claim: Claim) -> str:
        own = self.errors.get(claim.row.id)
        if own is not None and claim.scope.kind in ("key", "message"):
            return str(own)
        known = self.holds.errors.get(claim.scope)
        if known is None and own is not None:
            known = f"TOO_MANY_PARKED: the topic has too many held keys: {own}"
        return known or "HELD: an earlier message waits"

    def _together(
        self,
        write: Write,
        records: list[dict[str, Any]],
        rows: list[HoldRow],
        fails: Mapping[int, tuple[int, str]],
        claims: dict[str, Any],
    ) -> Write | None:
        """Execute the statements; None where not all lanes' rows could be locked."""
        mine = self.lease.ownership(self.reads.lanes)
        with self.conn.transaction():
            self._run(LANE_STATEMENTS["lock_timeout"], {"ms": str(ROW_WAIT_MS)})
            locked = self.conn.execute(STATEMENTS["own"], mine, prepare=True).fetchone()
            if locked != (len(self.reads.lanes),) or not self._intend(write):
                return None
            if rows:
                self._run(STATEMENTS["begin_holds"], values_of(rows))
            if fails:
                self._run(
                    STATEMENTS["fail_holds"],
                    {
                        "numbers": list(fails),
                        "heads": [head for head, _ in fails.values()],
                        "errors": [error for _, error in fails.values()],
                    },
                )
            if write.claims:
                self._run(STATEMENTS["claim"], claims)
            self._insert(records)
            settled = self.reads.gone | {item.row.id for item in write.published if item.taken_from}
            if settled:
                self._run(STATEMENTS["settle"], {"ids": array_text(settled)})
            failed = {claim.scope for claim in write.claims if claim.is_failed} | self.unrequested
            if failed:
                self._run(STATEMENTS["end_requests"], self._acted_on(failed))
            retract, _ = self._change("retract", write.retract)
            let_go, self._dropped = self._change("let_go", write.let_go)
            return replace(write, retract=retract, let_go=let_go, announce=self._announce(write.announce))

    def _acted_on(self, failed: Collection[Scope]) -> dict[str, Any]:
        """Return which requests of holds are over. Of a topic or partition that Kafka takes nothing of, all are."""
        until = {
            number: inf if scope in self.unrequested else self.holds.acted[scope]
            for scope in failed
            if scope in self.unrequested or scope in self.holds.acted
            for number in self.holds.numbers([scope])
        }
        return {"numbers": list(until), "until": list(until.values())}

    def _run(self, statement: str, values: Mapping[str, Any]) -> None:
        self.conn.execute(statement, values, prepare=True)

    def _change(self, name: str, scopes: Collection[Scope]) -> tuple[tuple[Scope, ...], frozenset[int]]:
        """Change the rows of holds; return the holds of which all rows were free, and the numbers of those rows."""
        if not scopes:
            return (), frozenset()
        values = {"numbers": self.holds.numbers(scopes)}
        rows = self.conn.execute(STATEMENTS[name], values, prepare=True).fetchall()
        found = frozenset(number for (number,) in rows)
        return tuple(scope for scope in scopes if found.issuperset(self.holds.numbers([scope]))), found

    def end_announcements(self) -> bool:
        """Mark what an earlier owner announced as in doubt; return whether no row of it was held by another session."""
        if self.announced_before:
            values = {
                "epoch": self.lease.epoch,
                "owner": self.lease.owner,
                "lanes": array_text(self.reads.lanes),
            }
            left = self.conn.execute(STATEMENTS["end_announcements"], values).fetchall()
            self.announced_before = bool(left)
        return not self.announced_before

    def _announce(self, scopes: Collection[Scope]) -> tuple[Scope, ...]:
        if not scopes or not self.end_announcements():
            return ()
        asked = [
            (hold, number)
            for hold, scope in enumerate(scopes)
            for number in self.holds.by_scope.get(scope, {}).values()
        ]
        values = {
            "holds": [hold for hold, _ in asked],
            "numbers": [number for _, number in asked],
            "sinces": [self.holds.since.get(number, 0) for _, number in asked],
            "most": HOLD_PAGE,
        }
        listed: dict[int, list[tuple[int, bool]]] = {}
        first: dict[int, int] = {}
        for hold, number, id_, place, in_doubt in self.conn.execute(
            STATEMENTS["announce"], values, prepare=True
        ).fetchall():
            of_hold = listed.setdefault(hold, [])
            if id_ is not None:
                # What is deleted in front of the first one stays in the index while a snapshot is held.
                first.setdefault(number, place)
                of_hold.append((id_, in_doubt))
        self.holds.since.update(first)
        done = []
        for hold, scope in enumerate(scopes):
            if scope not in self.holds.by_scope:  # it has no row any more: nothing of it waits
                listed.setdefault(hold, [])
            if hold in listed:
                ids = [id_ for id_, _ in listed[hold]]
                doubtful = frozenset(id_ for id_, in_doubt in listed[hold] if in_doubt)
                self.reads.announced[scope] = Announced(
                    array("q", ids[:HOLD_PAGE]), doubtful, len(ids) > HOLD_PAGE
                )
                done.append(scope)
        return tuple(done)

    def _barrier(self) -> Call:
        return Call(_BARRIER, _BARRIER.bind(self.lease.ownership(self.reads.lanes)))

    def _require_a_row(self, rows: int | None) -> None:
        if not rows:
            raise LeaseLostError(
                f"another relay has taken lanes from {self.lease.owner} (epoch {self.lease.epoch})"
            )


def _named(scope: Scope) -> str:
    return scope.kind if scope.kind in ("topic", "partition") else "key"
