"""Sets aside, gives up or publishes again what cannot be published: COMMITTED → DEAD → SKIPPED or COMMITTED.

A message whose earlier acknowledgement was lost may be in Kafka. It does not become DEAD; it is given up as such:
COMMITTED → SKIPPED.

A message that parks its key is COMMITTED, and shown as DEAD. Released, it keeps its place: the relay publishes it, and
then what is held behind it. Once it is set aside or given up, what is held behind it is published.

Order: a message that is set aside leaves the order of its key; the messages behind it are published. Released, it takes
its place when it is released, behind what was committed meanwhile. Skipped, it is never published.

A message that has expired is COMMITTED, and shown as DEAD. It holds no other one, and is not released.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import psycopg
from psycopg.rows import dict_row

from outbox.statements import Statements
from outbox_relay.database import rights
from outbox_relay.operations import half_messages, holds
from outbox_relay.operations.decide import DecisionResult, deciding
from outbox_relay.operations.messages import Row
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.formatting import cell, printable, seconds
from outbox_relay.text.former_names import with_present_names

STATEMENTS = Statements("outbox_relay/operations/dead_letters.sql")

ACTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "dead": {"COMMITTED": ("DEAD",)},
    "skip": {"COMMITTED": ("DEAD", "SKIPPED"), "DEAD": ("SKIPPED",)},
    "skip in doubt": {"COMMITTED": ("SKIPPED",), "DEAD": ("SKIPPED",)},
    "release": {"DEAD": ("COMMITTED",)},
}
"""By action and state: the transitions that are made, in one transaction."""
DONE = {
    "dead": "is set aside: the others go on within about a second. Publish it later: outbox holds release "
    "{id} --reason TEXT; or give it up: outbox holds skip {id} --reason TEXT",
    "skip": "is given up: it is never published",
    "skip in doubt": "is given up: it is not published again; if Kafka has it already, it stays there",
    "release": "is committed again: it is published behind what was committed before",
}
REQUESTED = (
    "is tried again within about a second, and what is held behind it follows in order; if it fails again: "
    "outbox holds ls"
)
NO_REASON = (
    "is set aside, and publishing it after all is kept in the audit: outbox holds release {id} --reason TEXT"
)
NOT_HELD = "waits for no hold and not for its time, so a relay may be publishing it now; see: outbox message show {id}"
CHANGED = "was changed by somebody else meanwhile, and is left as it is; see: outbox holds ls"
GOAL = {"dead": "DEAD", "skip": "SKIPPED", "skip in doubt": "SKIPPED"}


class _ChangedError(Exception):
    """Somebody else changed the message; the transaction is rolled back."""


def act(
    conn: psycopg.Connection[Any],
    action: str,
    identity: tuple[int | None, uuid.UUID | None],
    reason: str | None,
    wait: float,
    *,
    only: tuple[str | None, ...] = (),
) -> DecisionResult:
    """Do one of ACTIONS with one message, in a transaction of its own.

    If the connection breaks while it commits, it is unknown whether it was done: `dead` and `skip` may be repeated.

    Args:
        conn: an autocommit connection that is in no transaction.
        action: one of ACTIONS; "skip in doubt" is for a message that may be in Kafka already, and for no other.
        identity: the message's id or message id.
        reason: why; becomes the message's remark and is kept in the audit. None: only for a message that waits for a
            hold to be released.
        wait: seconds to wait for another transaction that holds the message or its lane.
        only: leave a message alone that is not COMMITTED, or does not wait for one of these reasons.

    Raises:
        OperatorError: there is no such message.
    """
    message = half_messages.get(conn, identity)
    try:
        with deciding(conn, wait):
            before = _read(conn, message)
            if action == "release" and before["expired"]:
                return DecisionResult(message, "refused", _expired(message, before), before["state"])
            state, by, at = before["state"], None, None
            if only and (state != "COMMITTED" or before["waiting"] not in only):
                return DecisionResult(message, "refused", CHANGED, state)
            if action == "release" and state == "COMMITTED" and before["status"] != "PUBLISHED":
                return _released(conn, message, before)
            if reason is None and state in ACTIONS[action]:
                return DecisionResult(message, "refused", NO_REASON.format(id=message["id"]), state)
            for after in ACTIONS[action].get(state, ()):
                values = {**_named(message), "before": state, "after": after, "reason": reason}
                row = conn.execute(STATEMENTS["change"], values).fetchone()
                if row is None:
                    raise _ChangedError
                state, (by, at) = after, row
    except _ChangedError:
        return DecisionResult(message, "refused", CHANGED, str(message["state"]))
    except psycopg.errors.LockNotAvailable:
        text = (
            f"or its lane is held by another transaction; waited {seconds(wait)}, nothing was changed: run it "
            "again, or wait longer with --wait SECONDS"
        )
        return DecisionResult(message, "locked", text, str(message["state"]))
    except (psycopg.errors.CheckViolation, psycopg.errors.InsufficientPrivilege) as error:
        return DecisionResult(message, "refused", _refusal(error, message), str(message["state"]))
    if by is not None:
        return DecisionResult(
            message, "decided", DONE[action].format(id=message["id"]), state, by, at, reason
        )
    if state == GOAL.get(action):
        return _already(message, before)
    return DecisionResult(message, "refused", _cannot(action, message, before), state)


def _released(conn: psycopg.Connection[Any], message: Row, now: Row) -> DecisionResult:
    """Ask for another try of the hold for which a message waits."""
    hold = holds.of_message(conn, message["id"])
    if hold is None:
        return DecisionResult(message, "refused", _cannot("release", message, now), now["state"])
    if hold.is_paused:
        return DecisionResult(message, "refused", f"waits: {hold.repair()[0]}", now["state"])
    drain = conn.execute(STATEMENTS["request_drain"], {"numbers": hold.numbers}).fetchone()
    if drain is None:
        return DecisionResult(message, "refused", hold.being_tried, now["state"])
    by, at = drain
    return DecisionResult(message, "decided", _requested(conn, hold), now["state"], by, at)


def _requested(conn: psycopg.Connection[Any], hold: holds.HoldView) -> str:
    if hold.kind in ("key", "message"):
        for wider in holds.everything(conn, holds.HoldFilter(topic=hold.topic), None, of=["topics"]):
            if wider.kind == "topic" and hold.lanes[0] in wider.lanes:
                return f"is tried again once its topic is published again: {wider.repair()[0]}"
    return REQUESTED + ("" if hold.has_relay else "; no relay runs for it: outbox relay run")


def act_on_all(
    conn: psycopg.Connection[Any],
    action: str,
    chosen: holds.HoldFilter,
    reason: str,
    wait: float,
    *,
    waiting: str = "failed",
) -> Iterator[DecisionResult]:
    """Set aside or give up all messages that fail, or have expired, each in a transaction of its own; yield results.

    What was held behind one that failed is published then; those of it that fail then, and what somebody else has
    changed meanwhile, are left as they are.

    Args:
        conn: an autocommit connection that is in no transaction.
        action: "dead", "skip", or "skip in doubt": of those that may be in Kafka already, and of no others.
        chosen: of these holds; of expired messages, which have none, only the topic counts.
        reason: as for `act`.
        wait: as for `act`.
        waiting: "failed" or "expired".
    """
    ids: list[int] = []
    in_doubt = action == "skip in doubt"
    values: dict[str, Any] = {**asdict(chosen), "waiting": waiting, "in_doubt": in_doubt, "after": 0}
    while page := [row[0] for row in conn.execute(STATEMENTS["next_to_give_up"], values)]:
        ids += page
        values["after"] = page[-1]
    for id_ in ids:
        try:
            yield act(conn, action, (id_, None), reason, wait, only=(waiting, None))
        except OperatorError as error:  # its partition was dropped: the others are still to be done
            yield DecisionResult({"id": id_, "message_id": None}, "refused", str(error), "gone")


def has_more_in_doubt(
    conn: psycopg.Connection[Any], chosen: holds.HoldFilter, *, waiting: str = "failed"
) -> bool:
    """Return whether some fail, or have expired, that `act_on_all` leaves because they may be in Kafka already."""
    values = {**asdict(chosen), "waiting": waiting, "in_doubt": True, "after": 0}
    return conn.execute(STATEMENTS["next_to_give_up"], values).fetchone() is not None


def _named(message: Row) -> dict[str, Any]:
    return {"id": message["id"], "message_id": message["message_id"]}


def _read(conn: psycopg.Connection[Any], message: Row) -> Row:
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(STATEMENTS["read_state"], _named(message)).fetchone()
    if row is None:
        raise OperatorError(f"message {message['id']} has just been dropped with its partition")
    return row


def _already(message: Row, now: Row) -> DecisionResult:
    why = printable(now["reason"] or "no reason given")
    text = f"is {now['state']} since {cell(now['happened_at'])}, by {printable(now['actor'])} ({why})"
    return DecisionResult(
        message, "already", text, now["state"], now["actor"], now["happened_at"], now["reason"]
    )


def _refusal(error: psycopg.Error, message: Row) -> str:
    """Give the guard's own words, without the message id that the command names by its id; it knows lanes that stop."""
    if error.diag.constraint_name == "message_dead_stopped_its_lane":
        return NOT_HELD.format(id=message["id"])
    text = (error.diag.message_primary or str(error)).removeprefix(f"message {message['message_id']} ")
    hint = error.diag.message_hint
    return "\n".join(filter(None, [text, hint and with_present_names(hint), rights.repair(error)]))


def _expired(message: Row, now: Row) -> str:
    return (
        f"has expired: its deliver_before, {cell(now['deliver_before'])}, is over, so it is never published. "
        f"Give it up: outbox holds skip {message['id']} --reason TEXT; or send its content in a new message"
    )


def _cannot(action: str, message: Row, now: Row) -> str:
    id_, state = message["id"], now["state"]
    if state in half_messages.STATES:
        return f"is {state}, a half message that is not committed; decide it: outbox tx rollback {id_} --reason TEXT"
    if now["status"] == "PUBLISHED":
        return f"is published already, at {now['topic']} {now['partition']}/{now['offset']}"
    if action == "release" and state == "COMMITTED":
        return "is held by nothing: it is published as soon as the relay gets to it; see: outbox status"
    return f"is {state}, which is final; see: outbox message show {id_}"
