"""The tables of a warehouse that is as it should be, made from a small world of the demo; tests wreck one row."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from outbox_local.demo.tables import Tables
from tests.support.demo_world import World

Row = dict[str, Any]
TOPIC = "flights-1"


def tables(made: World) -> Tables:
    """What an export and its marts would hold of this world, all of it on one day."""
    history = [_row(made, place) for place in range(len(made.records))]
    day = history[0]["born_at"].date()
    mart = {"day": day, "topic": TOPIC}
    count = len(history)
    flown = Counter(row["key"] for row in history)
    top, times = flown.most_common(1)[0]
    ten = sum(number for _, number in flown.most_common(10))
    size = sum(len(row["key"]) + len(row["body"]) for row in history)
    skew = {"top_key": top, "top_share": times / count, "top10_share": ten / count}
    offsets: dict[int, list[int]] = {}
    for row in history:
        offsets.setdefault(row["partition"], []).append(row["offset"])
    return Tables(
        history,
        throughput=[{**mart, "sent": count, "published": count, "bytes": size}],
        latency=[{**mart, "published": count, "p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 2.0, "max_ms": 3.0}],
        key_skew=[{**mart, "messages": count, "keys": len(flown), **skew}],
        gaps=[
            {**mart, "partition": partition, "first_offset": min(own), "last_offset": max(own), "seen": len(own),
             "missing": 0, "repeated": 0}
            for partition, own in offsets.items()
        ],
    )  # fmt: skip


def _row(made: World, place: int) -> Row:
    record = made.records[place]
    entry = made.entry(record)
    at = datetime.fromtimestamp(entry.began, UTC)
    body = (record.value or "").encode()
    assert json.loads(body)["row"] == entry.flight
    return {
        "message_id": record.header("outbox-id"),
        "topic": TOPIC,
        "key": (record.key or "").encode(),
        "body": body,
        "body_json": record.value,
        "tags": (record.header("outbox-tags") or "").split("||"),
        "state": "COMMITTED",
        "status": "PUBLISHED",
        "partition": record.partition,
        "offset": record.offset,
        "born_at": at,
        "published_at": at,
    }
