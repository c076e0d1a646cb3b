"""Records of messages that have no place in the window: those of other windows, and those that should not be there."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from outbox_etl.reconcile.findings import Finding, chunks
from outbox_etl.warehouse.tables import MESSAGE_HISTORY, TRANSACTION_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from outbox_etl.reconcile.findings import Findings
    from outbox_etl.reconcile.sources import Reader
    from outbox_etl.warehouse.target import Target


def check_orphans(
    each: DataFrame, found: Findings, reader: Reader, target: Target, *, shared: bool
) -> dict[tuple[str, int], int]:
    """Check the records of messages that have no place in this window.

    Args:
        each: what `KafkaComparison.messages` answered.
        found: takes what is found.
        reader: asks PostgreSQL, after Kafka was read: what a relay published was committed before.
        target: knows what PostgreSQL no longer has.
        shared: other outboxes publish to these topics too, so a record of an unknown message is foreign.

    Returns:
        Per partition the first record that is still undecided, since its publication is not recorded. The
        verification that decides it has to read from there: if a relay died before it recorded what it
        published, first appearances and order can be seen in those records alone.
    """
    rest = each.where("NOT known")
    waiting = rest.where("array_contains(states, 'COMMITTED')").select(f.explode("there").alias("record"))
    held: dict[tuple[str, int], int] = {}
    for row in (
        waiting.groupBy("record.topic", "record.partition")
        .agg(f.min("record.offset").alias("low"), f.count("*").alias("count"))
        .collect()
    ):
        held[row["topic"], row["partition"]] = row["low"]
        found.notes["not_judged_yet"] += row["count"]
    rest = rest.where("NOT array_contains(states, 'COMMITTED')")
    for taken in chunks(rest.select("message_id", "there")):
        ids = {row["message_id"] for row in taken}
        known = reader.messages_by_id(filter(_is_uuid, ids))
        stored = _stored(target, ids - known.keys()) if ids - known.keys() else {}
        for row in taken:
            if _check_orphan(row["message_id"], row["there"], known, stored, found, shared=shared):
                first = row["there"][0]
                place = first["topic"], first["partition"]
                held[place] = min(held.get(place, first["offset"]), first["offset"])
    return held


def _check_orphan(
    message_id: str,
    there: Sequence[Any],
    known: Mapping[str, Any],
    stored: Mapping[str, Any],
    found: Findings,
    *,
    shared: bool,
) -> bool:
    """Check the records of one message; return whether that cannot be done yet."""

    def tell(kind: str, detail: str, record: Any) -> None:
        found.add(
            Finding(kind, "kafka", message_id, record["topic"], record["partition"], record["offset"], detail)
        )

    if message_id in known:
        row = known[message_id]
        state, topic, places = row["state"], row["topic"], set(row["places"])
        given_up_in_doubt = row["given_up_in_doubt"]
    elif message_id in stored:
        state, topic, places, given_up_in_doubt = stored[message_id]
    else:
        if shared:
            found.notes["of_other_outboxes"] += len(there)
        else:
            tell("unknown", "neither PostgreSQL nor the warehouse has this message", there[0])
        return False
    if given_up_in_doubt:
        found.notes["given_up_in_doubt"] += 1
    elif state != "COMMITTED":
        tell("not_committed", f"the message is {state}", there[0])
    elif strange := [record for record in there if record["topic"] != topic]:
        tell("misplaced", f"the message was sent to {topic}", strange[0])
    elif len(there) > 1 or (places and f"{there[0]['partition']}@{there[0]['offset']}" not in places):
        where = ", ".join(f"{record['partition']}@{record['offset']}" for record in there)
        tell(
            "doubled",
            f"records at {where}, recorded at {', '.join(sorted(places)) or 'none yet'}",
            there[-1],
        )
    else:
        found.notes["of_other_windows" if places else "not_judged_yet"] += 1
        return not places
    return False


def _given_up_in_doubt(target: Target, ids: Sequence[str]) -> set[str]:
    """Return those of these messages that were given up although Kafka might have them: not by way of DEAD."""
    events = target.read(TRANSACTION_EVENTS).where("from_state = 'COMMITTED' AND to_state = 'SKIPPED'")
    rows = events.where(f.col("message_id").isin(list(ids))).select("message_id").collect()
    return {row["message_id"] for row in rows}


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _stored(target: Target, ids: set[str]) -> dict[str, tuple[str, str, set[str], bool]]:
    """State, topic and first place of messages that only the warehouse has."""
    rows = target.read(MESSAGE_HISTORY).where(f.col("message_id").isin(sorted(ids)))
    taken = rows.select("message_id", "state", "topic", "partition", "offset").collect()
    skipped = [row["message_id"] for row in taken if row["state"] == "SKIPPED"]
    in_doubt = _given_up_in_doubt(target, skipped) if skipped else set()
    return {
        row["message_id"]: (
            row["state"],
            row["topic"],
            set() if row["offset"] is None else {f"{row['partition']}@{row['offset']}"},
            row["message_id"] in in_doubt,
        )
        for row in taken
    }
