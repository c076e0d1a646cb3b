"""A relay that takes lanes which are delivered exactly once proves first what its predecessor sent.

The lanes are taken, so no other relay writes an intent for them. New producers fence the former ones, and wait until
Kafka has ended their transactions. The group's offset is then the number of the last batch that Kafka has. One commit
writes the publications of all batches up to it, and deletes the intents of the others, which are certainly not in
Kafka.

What cannot be proven stops the relay of this shard, with its intents as they are: the offset of another environment
that uses the same ids, an offset that Kafka has forgotten, a standby that lacks the newest intents. A relay that
delivers at least once takes over all the same, and publishes again what may be in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import psycopg
from confluent_kafka import KafkaException

from outbox.statements import Statements, array_text
from outbox_relay.publisher.core.transactions import NotProvenError
from outbox_relay.publisher.core.values import Item, Proof, Row, Write
from outbox_relay.publisher.hands.published import records_of
from outbox_relay.publisher.hands.senders import check
from outbox_relay.publisher.hands.transactional import TransactionalWires
from outbox_relay.publisher.hands.writes import STATEMENTS as WRITE_STATEMENTS
from outbox_relay.publisher.kafka import readable
from outbox_relay.publisher.lease import Lease, LeaseLostError
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.shard import Guarantee, Shard
from outbox_relay.publisher.snapshot import Snapshot
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.logs import Log

STATEMENTS = Statements("outbox_relay/publisher/hands/batches.sql")

FIRST = Proof(0, "")
"""The batch of a shard that begins."""
ABSENT = Proof(-1, "")
"""What a group has committed of which Kafka knows nothing."""
LEFT = "left"
"""The digest of the last batch of a group that is left. No backup of the time before knows it."""
PREFIX = "outbox-"

log = Log("relay")


class DeliveryError(OperatorError):
    """Exactly-once delivery is not possible; the text names why, and what repairs it."""


def not_proven(reason: str, name: str) -> DeliveryError:
    """Return why a relay stops whose batches Kafka does not prove."""
    return DeliveryError(
        f"BATCH_NOT_PROVEN: {reason} (consumer group {name!r}): Kafka has forgotten the group, another environment "
        "uses its transactional ids, or this server lacks what another one had recorded\n"
        "find out which: outbox failover scan lists what Kafka has. Then let a relay publish again what may be there: "
        "outbox relay run --delivery at-least-once; stop it, and start exactly-once again"
    )


_PREFIXED = "--resource-pattern-type prefixed --allow-principal User:NAME"
_REFUSALS = {
    "INVALID_TRANSACTION_TIMEOUT": (
        "transaction.timeout.ms is above what the broker allows (transaction.max.timeout.ms)",
        "state a shorter one: --kafka-config transaction.timeout.ms=60000",
    ),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": (
        "the Kafka user may not use the transactional ids of this database",
        "grant it: kafka-acls --add --operation Write --operation Describe --transactional-id outbox- "
        + _PREFIXED,
    ),
    "GROUP_AUTHORIZATION_FAILED": (
        "the Kafka user may not commit offsets of the group in which batches are numbered",
        "grant it: kafka-acls --add --operation Read --group outbox- " + _PREFIXED,
    ),
    "TOPIC_AUTHORIZATION_FAILED": (
        "the Kafka user may not name the topic __consumer_offsets in an offset",
        "grant it: kafka-acls --add --operation Read --topic __consumer_offsets --allow-principal User:NAME",
    ),
    "UNKNOWN_TOPIC_OR_PART": (
        "the topic __consumer_offsets has one partition, and the offsets of two producers need two",
        "let the brokers make that topic with offsets.topic.num.partitions=2 or more",
    ),
    **dict.fromkeys(
        ("_UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION"),
        (
            "the broker has no transactions of this kind",
            "use Kafka 2.5 or newer, or --delivery at-least-once",
        ),
    ),
}


def refusal(code: str, text: str, name: str) -> DeliveryError | None:
    """Return what to do about an error of Kafka that no waiting repairs; None for any other.

    Args:
        code: Kafka's name of the error.
        text: its text.
        name: of the group, which begins the transactional ids.
    """
    known = _REFUSALS.get(code)
    if known is None:
        return None
    return DeliveryError(f"{code}: {known[0]} ({name}): {text}\n{known[1]}")


@contextmanager
def naming_refusals(name: str) -> Iterator[None]:
    """Raise a DeliveryError for an error of Kafka that no waiting repairs."""
    try:
        yield
    except KafkaException as error:
        found = refusal(error.args[0].name(), readable(error), name)
        if found is None:
            raise
        raise found from error


def require_transactions(conn: psycopg.Connection[Any], settings: Mapping[str, Any], shard: Shard) -> None:
    """Find out whether Kafka lets this relay deliver exactly once, before it takes lanes.

    Raises:
        DeliveryError: it does not.
        KafkaException: Kafka does not reply.
    """
    name = f"{_base(conn, shard)}-check"
    with naming_refusals(name):
        check(settings, name)


def _base(conn: psycopg.Connection[Any], shard: Shard) -> str:
    return f"{_prefix(conn)}{shard.number}of{shard.count}"


def _prefix(conn: psycopg.Connection[Any]) -> str:
    """Return how the names begin that are made in this database of this server."""
    row = conn.execute(STATEMENTS["identity"]).fetchone()
    assert row is not None  # noqa: S101  (this database is there)
    return f"{PREFIX}{row[0]}-{row[1]}-"


def _proven_by_another(shard: str) -> LeaseLostError:
    """Return why a relay begins again: one of another division of the lanes proves the same batches."""
    return LeaseLostError(f"another relay has proven the batches of shard {shard} meanwhile")


@dataclass(slots=True)
class Proving:
    """Proves the batches of lanes that were taken, before anything is read."""

    conn: psycopg.Connection[Any]
    lease: Lease
    settings: Mapping[str, Any]
    partitions: LivePartitions
    floor: Snapshot
    batch: int
    """The last one of the publications of this epoch."""
    is_doubted: bool = False
    """Whether Kafka may have what has no publication: it did not prove it, and messages are delivered at least once."""

    def run(self) -> tuple[TransactionalWires, Proof] | None:
        """Prove what former leaders sent; return the producers and the last batch, or None for at-least-once.

        Raises:
            DeliveryError: it cannot be proven, or Kafka refuses.
            KafkaException: Kafka does not reply.
            LeaseLostError: another relay has the lanes.
        """
        kept: tuple[TransactionalWires, Proof] | None = None
        is_exact = self.lease.delivery is Guarantee.EXACTLY_ONCE
        prefix = _prefix(self.conn)
        values = {"lanes": array_text(self.lease.lanes)}
        for shard, name in self.conn.execute(STATEMENTS["known"], values).fetchall():
            wires = TransactionalWires(self.settings, name)
            is_here = name.startswith(prefix)
            try:
                offset = self._prove(shard, wires)
                self._record(shard, offset)
                if is_exact and is_here and shard == str(self.lease.shard):
                    kept = wires, offset
                else:
                    self._leave(shard, wires, offset, is_here=is_here)
            finally:
                if kept is None or kept[0] is not wires:
                    wires.close()
        return self._begin() if is_exact and kept is None else kept

    def _begin(self) -> tuple[TransactionalWires, Proof]:
        """Begin a shard: from now on its messages go in transactions.

        A backup that is restored issues epochs again, so they do not make a name that is new to Kafka.
        """
        name = f"{_base(self.conn, self.lease.shard)}-{self.lease.epoch}-{token_hex(4)}"
        values = {
            "shard": str(self.lease.shard),
            "name": name,
            "lanes": array_text(self.lease.lanes),
            "digest": FIRST.digest,
        }
        with self.conn.transaction():
            self._lock()
            self.conn.execute(STATEMENTS["begin"], values)
        log.info("exactly-once delivery begins", group=name)
        wires = TransactionalWires(self.settings, name)
        return wires, self._prove(str(self.lease.shard), wires)

    def _prove(self, shard: str, wires: TransactionalWires) -> Proof:
        known = self._intents(shard)
        with naming_refusals(wires.name):
            try:
                shown = wires.offset(stable=False)
                # What is behind all of them may only be late: Kafka replies before it writes the marker.
                if shown is not None and known and shown.number >= known[0].number:
                    self._require(shard, shown, known, wires)  # before it fences a relay
                offset = self._fenced(wires)
                self._require(shard, offset, known, wires)
            except DeliveryError as error:
                if self.lease.delivery is Guarantee.EXACTLY_ONCE:
                    raise
                log.warning("messages may be published again", reason=str(error))
                self._fenced(wires)
                self.is_doubted = True
                return ABSENT
            if offset is None:
                wires.commit_nothing(FIRST)
            return FIRST if offset is None else offset

    def _intents(self, shard: str) -> list[Proof]:
        rows = self.conn.execute(STATEMENTS["intents"], {"shard": shard}).fetchall()
        return [Proof(*row) for row in rows]

    def _fenced(self, wires: TransactionalWires) -> Proof | None:
        wires.replace()
        return wires.take_proof(None)[1]

    def _require(
        self, shard: str, offset: Proof | None, known: list[Proof], wires: TransactionalWires
    ) -> None:
        """Refuse an offset that is none of the batches that Kafka may have. One that begins has none yet."""
        if offset in known or (offset is None and known == [FIRST]):
            return
        self._lock()  # another leader may have sent it
        if not known or self._intents(shard) != known:
            raise _proven_by_another(shard)
        with suppress(psycopg.errors.LockNotAvailable):
            self.conn.execute(STATEMENTS["not_proven"], {"shard": shard})
        reason = f"Kafka has batch {offset}; expected one of {known}"
        raise not_proven(reason, wires.name) from NotProvenError(reason)

    def _record(self, shard: str, offset: Proof) -> None:
        """Write the publications of what Kafka has, and delete all intents but the last batch's."""
        values = {"shard": shard, "batch": offset.number}
        with self.conn.transaction():
            self._lock()
            if self.conn.execute(STATEMENTS["proven"], values).fetchone() is None:
                raise _proven_by_another(shard)
            found = self.conn.execute(STATEMENTS["unrecorded"], values).fetchall()
            if found:
                self._publish(found)
            self.conn.execute(STATEMENTS["end_intents"], values)
            if not self.is_doubted:
                self.conn.execute(STATEMENTS["end_announcements"], {"lanes": array_text(self.lease.lanes)})
        log.info("batches proven", shard=shard, batch=offset.number, recorded=len(found))

    def _leave(self, shard: str, wires: TransactionalWires, last: Proof, *, is_here: bool) -> None:
        """Forget a shard, or its name. Messages go out by other ways from now on, and the name proves nothing more.

        A backup that has the name as one in use must not find its last batch proven: Kafka gets a batch that it does
        not know. The original of a copy goes on, so its group is left as it is.
        """
        end = Proof(last.number + 1, LEFT)
        if is_here and not self.is_doubted and last.digest != LEFT:
            with self.conn.transaction():
                self._lock()
                self.conn.execute(STATEMENTS["intend_last"], {"shard": shard, **end._asdict()})
            wires.commit_nothing(end)
        with self.conn.transaction():
            self._lock()
            self.conn.execute(STATEMENTS["forget"], {"shard": shard})

    def _publish(self, rows: list[tuple[int, int, int]]) -> None:
        """Write publications without offsets: only their number is known."""
        items = tuple(
            Item(Row(id_, position, "", None, 0), 0, partition, in_doubt=False, taken_from=None)
            for id_, position, partition in rows
        )
        write = Write(items, (), self.floor, (), (), (), (), set(), 0, is_barrier=False)
        mine = self.lease.ownership(self.lease.lanes)
        self.batch += 1
        of_all = {**mine, "lanes": mine["mine"], "batch": self.batch}
        for record in records_of(write, of_all, self.partitions.bounds()):
            count = record["positions"].count(",") + 1
            unknown = array_text(["NULL"] * count)
            self.conn.execute(WRITE_STATEMENTS["record"], {**record, "offsets": unknown})
        self.conn.execute(WRITE_STATEMENTS["settle"], {"ids": array_text(id_ for id_, _, _ in rows)})

    def _lock(self) -> None:
        """Lock the lanes' rows until the transaction ends.

        Raises:
            LeaseLostError: another relay has the lanes.
        """
        row = self.conn.execute(WRITE_STATEMENTS["own"], self.lease.ownership(self.lease.lanes)).fetchone()
        if row != (len(self.lease.lanes),):
            raise LeaseLostError(
                f"lanes of {self.lease.owner} (epoch {self.lease.epoch}) are another relay's"
            )
