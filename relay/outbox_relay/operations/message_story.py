"""Reports one message's life: what happened in order of time, and what happens next or repairs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from outbox_relay.operations import half_message_life, half_message_story, half_messages
from outbox_relay.operations.half_message_life import HalfMessageLife
from outbox_relay.operations.messages import Life, Row
from outbox_relay.text import formatting


@dataclass(frozen=True)
class Happening:
    """Something that happened, or has a time.

    `kind` is what it is about: born, check, decision, wait, published, consumer or failure.
    """

    at: datetime
    kind: str
    text: str


@dataclass(frozen=True)
class Step:
    """What is next: a sentence, the commands that repair it, and whether somebody must act."""

    text: str
    commands: tuple[str, ...] = ()
    is_alarm: bool = True


def past(life: Life, consumed: Sequence[Row]) -> list[Happening]:
    """Return what happened, in order of time."""
    row = life.message
    entries = [_event(event) for event in life.events]
    if not any(event["from_state"] is None and event["kind"] == "transition" for event in life.events):
        entries.append(Happening(row["born_at"], "born", "born COMMITTED"))
    if row["deliver_at"] is not None:
        entries.append(Happening(row["deliver_at"], "wait", "not published before this time (deliver_at)"))
    if row["deliver_before"] is not None:
        entries.append(
            Happening(row["deliver_before"], "wait", "not published from this time on (deliver_before)")
        )
    if row["waiting"] is not None:
        until = "" if row["due_at"] is None else f", due at {formatting.cell(row['due_at'])}"
        entries.append(Happening(row["born_at"], "wait", f"waiting: {row['waiting']}{until}"))
    for number, one in enumerate(life.publications):
        again = " again" if number else ""
        place = f"{row['topic']}, partition {one['partition']}, offset {one['offset']}"
        batch = f"(epoch {one['epoch']}, batch {one['batch']})"
        entries.append(Happening(one["published_at"], "published", f"published{again} to {place} {batch}"))
    for one in consumed:
        entries += _consumed(one)
    return sorted(entries, key=lambda entry: entry.at)


def _event(event: Row) -> Happening:
    reason = "" if event["reason"] is None else f": {formatting.printable(event['reason'])}"
    actor = formatting.printable(event["actor"])
    at = event["happened_at"]
    if event["kind"] == "check":
        return Happening(at, "check", f"checked by {actor}, answer {event['answer'] or '-'}{reason}")
    if event["from_state"] is None:
        return Happening(at, "born", f"born {event['to_state']} by {actor}{reason}")
    return Happening(at, "decision", f"{event['from_state']} → {event['to_state']} by {actor}{reason}")


def _consumed(one: Row) -> Iterator[Happening]:
    group = formatting.printable(one["consumer_group"])
    if one["state"] == "applied":
        yield Happening(one["handled_at"], "consumer", f"applied by consumer group {group}")
    if one["failed_at"] is not None:
        text = f"consumer group {group} failed with it, attempt {one['attempts']}: {_failure(one)}"
        yield Happening(one["failed_at"], "failure", text)


def _failure(one: Row) -> str:
    return formatting.printable(str(one["failure"] or one["error"] or "no error is noted"))


def state_in_group(one: Row) -> str:
    """Return in a few words where a message is with a consumer group."""
    match one["state"]:
        case "applied":
            return f"applied at {formatting.cell(one['handled_at'])}"
        case "retrying":
            return f"failed {formatting.many(one['attempts'], 'time')}, next try at {formatting.cell(one['due_at'])}"
        case "waiting":
            return "waits for the end of a replay" if one["front"] is None else f"waits behind {one['front']}"
        case "dead":
            return f"dead after {formatting.many(one['attempts'], 'attempt')}"
        case "passed":
            return "passed: its subscription or its reset left the message out"
        case _:
            return f"not read yet: the group is at offset {formatting.cell(one['position'])}"


def _undecided(known: HalfMessageLife) -> list[Step]:
    """Return what happens next to a half message that is not decided, as `outbox tx explain` does."""
    steps = []
    for step in half_message_story.future(known):
        text, *commands = step.text.splitlines()
        steps.append(Step(text, tuple(commands), step.alarm))
    return steps


def next_steps(conn: psycopg.Connection[Any], life: Life, consumed: Sequence[Row]) -> list[Step]:
    """Return what happens next, and what repairs what stands in the way.

    Args:
        conn: an autocommit connection that is in no transaction.
        life: the message.
        consumed: what consumer groups did with it.
    """
    row = life.message
    steps: list[Step] = []
    if life.hold is not None:
        steps.append(Step(life.hold.hold_up(row["id"]), tuple(life.hold.repair())))
    if row["waiting"] == "expired":
        give_up = f"give it up: outbox holds skip {row['id']} --reason TEXT"
        steps.append(Step("EXPIRED: its deliver_before is over, so it is never published", (give_up,)))
    for one in consumed:
        if one["state"] in ("retrying", "dead"):
            steps.append(_stuck(one))
    if row["status"] in half_messages.STATES:
        half = half_messages.get(conn, (row["id"], None))
        steps += _undecided(half_message_life.around(conn, half, life))
    return steps


def _stuck(one: Row) -> Step:
    behind = f"; {formatting.many(one['behind'], 'message')} of its key behind it" if one["behind"] else ""
    group = formatting.printable(one["consumer_group"])
    text = f"consumer group {group}: {state_in_group(one)}: {_failure(one)}{behind}"
    show = f"all of its error: outbox dlq show {one['parked_id']}"
    if one["state"] == "retrying":
        return Step(text, (show,), is_alarm=False)
    return Step(
        text,
        (
            show,
            f"try it again: outbox dlq redrive {one['parked_id']}",
            f"give it up: outbox dlq discard {one['parked_id']}",
        ),
    )


def facts(life: Life) -> list[tuple[str, Any]]:
    """Return what a message is, by name; None is left out where it is shown."""
    row = life.message
    return [
        ("message id", row["message_id"]),
        ("id", row["id"]),
        ("status", row["status"]),
        ("remark", row["remark"]),
        ("topic", row["topic"]),
        ("partition", row["partition"]),
        ("offset", row["offset"]),
        ("key", row["key"]),
        ("order key", row["order_key"]),
        ("queue", life.routing.get("queue")),
        ("selector", life.routing.get("selector")),
        ("tags", row["tags"] or None),
        ("index keys", row["index_keys"] or None),
        ("producer group", row["producer_group"]),
        ("transaction id", row["transaction_id"]),
        ("checker", row["checker"]),
        ("business", " ".join(filter(None, (row["biz_type"], row["biz_id"]))) or None),
        ("trace", life.routing.get("traceparent")),
        ("lane", row["lane"]),
        ("position", row["position"]),
        ("xid", row["xid"]),
    ]
