"""What may go wrong with one row of a warehouse that holds flights; the proof has to find each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from outbox_local.demo.tables import Tables

Row = dict[str, Any]
Wreck = Callable[[Tables], Tables]


def changed(table: str, place: int = 0, **columns: Any) -> Wreck:
    """Give one row other values; a callable is given the old one."""

    def wreck(tables: Tables) -> Tables:
        rows = [dict(row) for row in getattr(tables, table)]
        for name, value in columns.items():
            rows[place][name] = value(rows[place][name]) if callable(value) else value
        return replace(tables, **{table: rows})

    return wreck


def without(table: str, place: int = 0) -> Wreck:
    """Take one row away."""
    return lambda tables: replace(
        tables, **{table: [row for at, row in enumerate(getattr(tables, table)) if at != place]}
    )


def twice(tables: Tables) -> Tables:
    """Hold one message twice."""
    return replace(tables, history=[*tables.history, tables.history[0]])


def swapped(tables: Tables) -> Tables:
    """Swap the offsets of two messages of one key."""
    rows = [dict(row) for row in tables.history]
    one, other = _pair(rows)
    rows[one]["offset"], rows[other]["offset"] = rows[other]["offset"], rows[one]["offset"]
    return replace(tables, history=rows)


def _pair(rows: Sequence[Row]) -> tuple[int, int]:
    seen: dict[bytes, int] = {}
    for place, row in enumerate(rows):
        if row["key"] in seen:
            return seen[row["key"]], place
        seen[row["key"]] = place
    raise AssertionError("no aircraft flew twice")


WRECKS: dict[str, tuple[Wreck, str]] = {
    "a message is lost": (without("history"), "arrived"),
    "a message is there twice": (twice, "once"),
    "two of an aircraft are swapped": (swapped, "order"),
    "a body has one space more": (changed("history", body=lambda body: body.replace(b",", b", ", 1)), "body"),
    "a body has another value": (changed("history", body=lambda body: body.replace(b"2013", b"2014", 1)), "content"),
    "a body is not told as JSON": (changed("history", body_json=None), "body"),
    "another key": (changed("history", key=b"N0"), "content"),
    "another tag": (changed("history", tags=["XX"]), "content"),
    "not published": (changed("history", status="COMMITTED", offset=None), "published"),
    "another time": (changed("history", born_at=lambda at: at + timedelta(days=1)), "born"),
    "another partition": (changed("history", 5, partition=99), "partition"),
    "another message's id": (
        lambda tables: changed("history", 1, message_id=tables.history[0]["message_id"])(tables), "ids",
    ),
    "one too many sent": (changed("throughput", sent=lambda sent: sent + 1), "throughput"),
    "bytes short of one": (changed("throughput", bytes=lambda size: size - 1), "throughput"),
    "a day without throughput": (without("throughput"), "throughput"),
    "another share": (changed("key_skew", top_share=lambda share: share * 1.001), "key skew"),
    "another top key": (changed("key_skew", top_key=b"N0"), "key skew"),
    "latency of one less": (changed("latency", published=lambda count: count - 1), "latency"),
    "a percentile below 0": (changed("latency", p50_ms=-1.0), "latency"),
    "an offset less": (changed("gaps", seen=lambda seen: seen - 1), "gaps"),
    "another last offset": (changed("gaps", last_offset=lambda last: last + 1), "gaps"),
}  # fmt: skip
"""Each by what is done, with the claim that has to break."""
