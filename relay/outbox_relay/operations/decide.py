"""Decides single half messages for an operator: COMMIT or ROLLBACK, with a reason, each in a transaction of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from outbox.client import Outbox
from outbox.errors import DecidedOtherwiseError, ExhaustedError, NotAHalfMessageError, UnknownMessageError
from outbox.operations.decide import DecidedState, Decision
from outbox.operations.remarks import LONGEST_REMARK
from outbox.records import HalfMessage
from outbox.statements import Statements
from outbox_relay.operations import locker
from outbox_relay.operations.actor import actor
from outbox_relay.operations.messages import Row
from outbox_relay.text.errors import OptionError
from outbox_relay.text.formatting import cell, printable, seconds

STATEMENTS = Statements("outbox_relay/operations/decide.sql")
WORDS = {"COMMITTED": "committed", "ROLLED_BACK": "rolled back"}


@dataclass(frozen=True)
class DecisionResult:
    """What became of one decision; `result` is decided or already, or it failed: otherwise, locked, refused."""

    half: Row
    result: str
    text: str
    state: str
    by: str | None = None
    at: datetime | None = None
    reason: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the message was not decided as requested."""
        return self.result not in ("decided", "already")

    def document(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "id": self.half["id"],
            "message_id": str(self.half["message_id"]),
            "result": self.result,
            "state": self.state,
            "by": self.by,
            "at": self.at,
            "reason": self.reason,
            "text": self.text,
        }


def checked_reason(text: str) -> str:
    """Require a reason that is not empty and is kept whole.

    Raises:
        OptionError: it is empty, or longer than the 500 characters that are kept.
    """
    reason = text.strip()
    if not reason:
        raise OptionError(
            "--reason is empty; expected why you decide so: the audit keeps it with the message"
        )
    if len(reason) > LONGEST_REMARK:
        raise OptionError(f"--reason has {len(reason)} characters, {LONGEST_REMARK} are kept: shorten it")
    return reason


@contextmanager
def deciding(conn: psycopg.Connection[Any], wait: float) -> Iterator[None]:
    """A transaction of an operator, which waits so many seconds for a message that somebody holds."""
    # lock_timeout = 0 would wait for ever.
    with conn.transaction():
        conn.execute(STATEMENTS["begin"], {"actor": actor(), "wait": f"{max(round(wait * 1000), 1)}ms"})
        yield


def decide(
    conn: psycopg.Connection[Any], half: Row, verdict: DecidedState, reason: str, wait: float
) -> DecisionResult:
    """Decide one half message, whether it is UNKNOWN or EXHAUSTED.

    If the connection breaks while it commits, it is unknown whether it was decided: the same again is fine then.

    Args:
        conn: an autocommit connection that is in no transaction.
        half: its id, message_id, topic and producer_group.
        verdict: what to decide.
        reason: why; becomes the message's remark and is kept in the audit.
        wait: seconds to wait for a local transaction that holds the message.
    """
    try:
        with deciding(conn, wait):
            decision = _decide(conn, half, verdict, reason)
    except psycopg.errors.LockNotAvailable:
        return DecisionResult(half, "locked", _locked(conn, half, verdict, wait), "UNKNOWN")
    except DecidedOtherwiseError as other:
        why = "no reason given" if other.reason is None else printable(other.reason)
        text = (
            f"cannot be {WORDS[verdict]}: it was {WORDS.get(other.state, other.state)} at {cell(other.at)} by "
            f"{printable(other.by)} ({why}); a decision is final"
        )
        return DecisionResult(half, "otherwise", text, other.state, other.by, other.at, other.reason)
    except (NotAHalfMessageError, UnknownMessageError) as error:
        return DecisionResult(half, "refused", str(error), str(half["state"]))
    said = "was" if decision.repeated else "is"
    what = f"{said} {WORDS[verdict]}" + (" before" if decision.repeated else "")
    told = f" at {cell(decision.at)} by {printable(decision.by)}" if decision.repeated else ""
    why = f" ({printable(decision.reason)})" if decision.repeated and decision.reason else ""
    return DecisionResult(
        half,
        "already" if decision.repeated else "decided",
        f"{what}{told}{why}",
        decision.state,
        decision.by,
        decision.at,
        decision.reason,
    )


def _decide(conn: psycopg.Connection[Any], half: Row, verdict: DecidedState, reason: str) -> Decision:
    outbox = Outbox()
    verb = outbox.commit if verdict is DecidedState.COMMITTED else outbox.rollback
    named = HalfMessage(half["id"], half["message_id"], half["topic"])
    try:
        return verb(conn, named, remark=reason)
    except ExhaustedError:
        row = conn.execute(
            STATEMENTS["decide_exhausted"],
            {"id": half["id"], "message_id": half["message_id"], "verdict": str(verdict), "reason": reason},
        ).fetchone()
        if row is not None:
            return Decision(str(verdict), row[0], row[1], reason)
        # Another operator was first, and that is final: the verb tells which way.
        return verb(conn, named, remark=reason)


def _locked(conn: psycopg.Connection[Any], half: Row, verdict: DecidedState, wait: float) -> str:
    found = locker.find(conn, half["id"])
    who = "another transaction" if found is None else found.describe()
    end = "" if found is None else f", or end that transaction first: {found.ending()}"
    return (
        f"is locked by {who}, and was not {WORDS[verdict]}: that may still decide by itself. Waited "
        f"{seconds(wait)}; wait longer with --wait SECONDS{end}"
    )
