"""The proof for a warehouse: its tables hold exactly what follows from the source and the producers' journals.

A pure function, as `proof.py` is, and by the same claims: each row of `message_history` is taken for the record that it
shows as published, at its partition and offset. The outbox's own tables are not read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from outbox_local.demo.claims import Claim, ProofResult
from outbox_local.demo.expected import Expected, expect
from outbox_local.demo.flights import Flight
from outbox_local.demo.journal import Entry, Record
from outbox_local.demo.marts import prove_marts
from outbox_local.demo.producer import body_of
from outbox_local.demo.proof import prove
from outbox_local.demo.tables import Row, Tables

CLOCKS_S = 60.0
"""How far the clocks of producers and PostgreSQL may be apart by default."""
TEXTS = {
    "arrived": "every committed flight is in message_history",
    "order": "in order per aircraft by their Kafka offsets: 1, 2, 3 … as the producers journalled",
    "rolled back": "no rolled-back flight is there",
    "nothing else": "nothing else is there",
    "once": "none is there twice",
}


def prove_history(
    source: Sequence[Flight],
    entries: Iterable[Entry],
    tables: Tables,
    *,
    seed: int,
    clocks_s: float = CLOCKS_S,
) -> ProofResult:
    """Compare what a warehouse has of one topic with what was written to it.

    Args:
        source: the flights that were played.
        entries: the producers' journals, in any order.
        tables: what was read, in any order.
        seed: decides which flights roll back.
        clocks_s: seconds by which the producers' clocks may differ from PostgreSQL's.
    """
    noted = list(entries)
    proof = prove(source, noted, _records(tables.history), seed=seed)
    for name, text in TEXTS.items():
        proof.claims[name].text = text
    expected = expect(source, noted, seed, lambda text: None)
    proof.claims |= _prove_rows(tables.history, expected, clocks_s)
    days = {number: utc(row["born_at"]).date() for number, row in _flights_of(tables.history)}
    proof.claims |= prove_marts(tables, expected, days)
    return proof


def _records(rows: Iterable[Row]) -> Iterator[Record]:
    """What was published, as a consumer would have read it: partition by partition, by offsets."""
    published = [row for row in rows if row["partition"] is not None and row["offset"] is not None]
    for row in sorted(published, key=lambda row: (row["partition"], row["offset"])):
        yield Record(
            row["partition"],
            row["offset"],
            timestamp=0,
            received=0.0,
            key=_text(row["key"]),
            value=_text(row["body"]),
            headers=(("outbox-id", row["message_id"]), ("outbox-tags", "||".join(row["tags"] or ()))),
        )


def _prove_rows(rows: Iterable[Row], expected: Expected, clocks_s: float) -> dict[str, Claim]:
    """Judge what a record does not have: the body's bytes, that it was published, when it was inserted."""
    body = Claim("each body to the byte as it was sent, and again as JSON")
    published = Claim("each COMMITTED and PUBLISHED, with a partition, an offset and a time")
    born = Claim("each inserted while its producer's transaction was open")
    alone = Claim("each message id once")
    entries = {**expected.unknown, **expected.committed}
    ids: Counter[str] = Counter()
    for number, row in _flights_of(rows):
        entry = entries.get(number)
        if entry is None:
            continue  # (told by the claims on what may be there)
        flight = expected.flights[number]
        sent = body_of(flight, entry.sequence).encode()
        body.checked += 1
        if bytes(row["body"]) != sent or (row["body_json"] or "").encode() != sent:
            body.offend(f"{flight.name}: body {row['body']!r}, as JSON {row['body_json']!r}, not {sent!r}")
        published.checked += 1
        places = (row["partition"], row["offset"], row["published_at"])
        if (row["state"], row["status"]) != ("COMMITTED", "PUBLISHED") or None in places:
            published.offend(f"{flight.name}: {row['state']}, {row['status']}, {places}")
        born.checked += 1
        at = utc(row["born_at"]).timestamp()
        if not entry.began - clocks_s <= at <= entry.ending + clocks_s:
            born.offend(f"{flight.name}: inserted at {row['born_at']}, journalled from {entry.began}")
        alone.checked += 1
        ids[row["message_id"]] += 1
        if ids[row["message_id"]] > 1:
            alone.offend(f"{flight.name}: under the message id {row['message_id']} of another row")
    return {"body": body, "published": published, "born": born, "ids": alone}


def _flights_of(rows: Iterable[Row]) -> Iterator[tuple[int, Row]]:
    """The rows that are of a flight, with its number in the source."""
    for row in rows:
        try:
            number = json.loads(row["body"] or b"null")["row"]
        except (ValueError, TypeError, KeyError):
            continue
        if type(number) is int:
            yield number, row


def utc(at: datetime) -> datetime:
    """A time as readers give it: with a time zone, or without one in UTC."""
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def _text(value: bytes | None) -> str | None:
    return None if value is None else bytes(value).decode("utf-8", "surrogateescape")
