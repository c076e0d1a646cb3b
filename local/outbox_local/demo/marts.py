"""The proof for the daily marts: they count, per day, the flights that were committed, by the source and no other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from outbox_local.demo.claims import Claim
from outbox_local.demo.expected import Expected
from outbox_local.demo.journal import Entry
from outbox_local.demo.producer import body_of
from outbox_local.demo.tables import Row, Tables

Days = Mapping[int, date]
"""The day, by PostgreSQL's clock and in UTC, on which each flight was entered."""
ROUNDING = 1e-9


def prove_marts(tables: Tables, expected: Expected, days: Days) -> dict[str, Claim]:
    """Check the marts of one topic.

    What is counted comes from the source and the journals; from the warehouse only the day of each insert, which is
    PostgreSQL's to set.
    """
    entered: dict[date, list[Entry]] = defaultdict(list)
    for number, entry in expected.committed.items():
        if number in days:
            entered[days[number]].append(entry)
    return {
        "throughput": _throughput(tables.throughput, expected, entered),
        "key skew": _key_skew(tables.key_skew, entered),
        "latency": _latency(tables.latency, expected),
        "gaps": _gaps(tables, expected),
    }


def _throughput(rows: Sequence[Row], expected: Expected, entered: Mapping[date, Sequence[Entry]]) -> Claim:
    claim = Claim("mart_throughput: sent per day, published and bytes in all, as the source has them")
    sent = {row["day"]: row["sent"] for row in rows if row["sent"]}
    _compare(claim, "sent", sent, {day: len(entries) for day, entries in entered.items()})
    size = sum(
        len(entry.aircraft.encode()) + len(body_of(expected.flights[number], entry.sequence).encode())
        for number, entry in expected.committed.items()
    )
    # (a message of late evening is published tomorrow: who knows which, but the relay)
    for name, right in (("published", len(expected.committed)), ("bytes", size)):
        _compare(claim, name, sum(row[name] for row in rows), right)
    return claim


def _key_skew(rows: Sequence[Row], entered: Mapping[date, Sequence[Entry]]) -> Claim:
    claim = Claim("mart_key_skew: the share of the aircraft that fly most, as the source has it")
    _compare(claim, "days", sorted(row["day"] for row in rows), sorted(entered))
    for row in rows:
        flown = Counter(entry.aircraft for entry in entered.get(row["day"], ()))
        if not flown:
            continue  # (told above)
        most, all_of_them = flown.most_common(10), flown.total()
        right = {"messages": all_of_them, "keys": len(flown), "top_share": most[0][1] / all_of_them}
        right["top10_share"] = sum(times for _, times in most) / all_of_them
        for name, value in right.items():
            claim.checked += 1
            if abs(row[name] - value) > ROUNDING:
                claim.offend(f"{row['day']}: {name} is {row[name]}, not {value}")
        top = bytes(row["top_key"]).decode()
        claim.checked += 1
        if flown[top] != most[0][1]:
            claim.offend(f"{row['day']}: {top} flew {flown[top]} times, {most[0][0]} {most[0][1]} times")
    return claim


def _latency(rows: Sequence[Row], expected: Expected) -> Claim:
    claim = Claim("mart_latency: every committed flight is measured, and percentiles grow")
    _compare(claim, "published", sum(row["published"] for row in rows), len(expected.committed))
    for row in rows:
        claim.checked += 1
        if not 0 <= row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"] <= row["max_ms"]:
            claim.offend(f"{row['day']}: {dict(row)}")
    return claim


def _gaps(tables: Tables, expected: Expected) -> Claim:
    """Each flight has an offset of its own, so that what was seen, repeats left out, is what was committed."""
    claim = Claim(
        "mart_gaps: as many offsets seen as flights were committed, within the offsets of message_history"
    )
    _compare(
        claim, "seen", sum(row["seen"] - row["repeated"] for row in tables.gaps), len(expected.committed)
    )
    offsets: dict[int, list[int]] = defaultdict(list)
    for row in tables.history:
        if row["partition"] is not None and row["offset"] is not None:
            offsets[row["partition"]].append(row["offset"])
    for name, which in (("first_offset", min), ("last_offset", max)):
        found: dict[int, Any] = {}
        for row in tables.gaps:
            found[row["partition"]] = which(found.get(row["partition"], row[name]), row[name])
        right = {partition: which(values) for partition, values in offsets.items()}
        if not any(row["repeated"] for row in tables.gaps):
            _compare(claim, name, found, right)
    return claim


def _compare(claim: Claim, name: str, found: Any, right: Any) -> None:
    claim.checked += 1
    if found != right:
        claim.offend(f"{name} is {found}, not {right}")
