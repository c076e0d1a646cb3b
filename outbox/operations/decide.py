"""Deciding half messages, as logic without I/O: a second decision gets the first one, its time and its reason."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from outbox import validation
from outbox.errors import (
    ConfigurationError,
    DecidedOtherwiseError,
    ExhaustedError,
    InvalidMessageError,
    NotAHalfMessageError,
    OutboxError,
    UnknownMessageError,
)
from outbox.operations.ranges import within_range
from outbox.operations.remarks import checked_remark
from outbox.records import HalfMessage, MessageView, Receipt
from outbox.statements import Plan, Rows, Statement, load
from outbox.wire import row_id_of

_SQL = load("decide.sql")
_DECIDE, _READ, _JOIN = _SQL["decide"], _SQL["read_decision"], _SQL["join"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOOKS = 3
"""A row that the first statement did not see can appear before the second; a third look never finds it undecided."""


class DecidedState(StrEnum):
    """The two decisions of a half message, as the table spells them."""

    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"


class Decision(NamedTuple):
    """What was decided about a message, by whom, when and why."""

    state: str
    """COMMITTED, ROLLED_BACK or CANCELLED."""
    by: str
    """The actor (the session's setting `outbox.actor`) and the database's user in brackets; the user alone if unset."""
    at: datetime
    """By the database's clock, in UTC."""
    reason: str | None = None
    """The remark that was given."""
    repeated: bool = False
    """Whether the same was decided earlier, and this call changed nothing."""


class Named(NamedTuple):
    """A message as statements name it: its place, and its one id for life."""

    id: str
    message_id: UUID

    @property
    def params(self) -> tuple[str, str]:
        """The values $1 and $2."""
        return self.id, str(self.message_id)


AnyMessage = HalfMessage | Receipt | MessageView | UUID | str
"""What names a message: what `prepare` or `send` returned, what a listener was given, or a message id."""


def named(argument: str, message: AnyMessage) -> Plan[Named]:
    """Find a message's row id: in what `prepare` returned, in an id of ours, or in the table for foreign ids.

    Raises:
        ConfigurationError: It is neither a message nor a UUID, or an application's own id that several messages have.
        UnknownMessageError: no message has this id of the application's own.
    """
    if isinstance(message, HalfMessage | Receipt | MessageView):
        return Named(str(message.id), message.message_id)
    message_id = _uuid(argument, message)
    row_id = row_id_of(message_id)
    if row_id is not None:
        return Named(str(row_id), message_id)
    rows = yield Statement(_SQL["find_foreign"], (str(message_id),))
    if not rows:
        raise unknown(message_id)
    if len(rows) > 1:
        raise ConfigurationError(
            f"{argument}: several messages have the id {message_id}; allowed: what prepare or send returned"
        )
    return Named(str(rows[0][0]), message_id)


def decide(
    half: AnyMessage, target: DecidedState, remark: str | None, *, ordered: bool = False
) -> Plan[Decision]:
    """Decide a half message in one round trip; a second one reads who was first.

    Raises:
        DecidedOtherwiseError: the opposite was decided before; ExhaustedError: it is left to an operator.
        NotAHalfMessageError: the message was sent, not prepared.
        UnknownMessageError: there is no such message, or this transaction cannot see it.
        InvalidMessageError: ordered, and the message has neither order key nor key.
        ConfigurationError: an argument is of a wrong type.
    """
    remark = checked_remark(remark)
    name = yield from named("half", half)
    if ordered:
        yield from _take_order_lock(name)
    for _ in range(_LOOKS):
        rows = yield Statement(within_range(_DECIDE, name.id), (*name.params, str(target), remark))
        if rows:
            state, by, at, reason = rows[0]
            return Decision(state, by, time_of(at), reason)
        found = yield Statement(_READ, name.params)
        decided = _decided(name, found, target)
        if decided is not None:
            return decided
    raise _undecidable(name)


def commit(half: AnyMessage, remark: str | None = None, *, ordered: bool = False) -> Plan[Decision]:
    """Decide that a half message is published; see `decide`."""
    return decide(half, DecidedState.COMMITTED, remark, ordered=ordered)


def rollback(half: AnyMessage, remark: str | None = None) -> Plan[Decision]:
    """Decide that a half message is never published; see `decide`."""
    return decide(half, DecidedState.ROLLED_BACK, remark)


def join(half: AnyMessage) -> Plan[None]:
    """Lock an undecided half message until the transaction ends.

    Raises:
        DecidedOtherwiseError: it is decided already, whichever way; ExhaustedError: it is left to an operator.
        NotAHalfMessageError, UnknownMessageError, ConfigurationError: as for `decide`.
    """
    name = yield from named("half", half)
    for _ in range(_LOOKS):
        if (yield Statement(within_range(_JOIN, name.id), name.params)):
            return
        found = yield Statement(_READ, name.params)
        _decided(name, found, None)
    raise _undecidable(name)


def _decided(name: Named, rows: Rows, target: DecidedState | None) -> Decision | None:
    """Read the earlier decision: the same one is the answer, another one an error; None where there is none."""
    if not rows:
        raise unknown(name.message_id)
    state, decided, by, at, reason = rows[0]
    if state == "UNKNOWN":
        return None
    if decided is None:
        raise NotAHalfMessageError(
            f"message {name.message_id} is {state} and never was a half message; allowed: what prepare returned"
        )
    if decided == target:
        return Decision(decided, by, time_of(at), reason, repeated=True)
    now = "" if state == decided else f", and is {state} now"
    why = f": {reason}" if reason else ", without a remark"
    raise _refusal(decided)(
        f"message {name.message_id} was decided {decided} by {by} at {time_of(at).isoformat(sep=' ')}{why}{now}. "
        + _advice(name, decided, target),
        message_id=name.message_id,
        state=decided,
        by=by,
        at=time_of(at),
        reason=reason,
    )


def _refusal(decided: str) -> type[DecidedOtherwiseError]:
    return ExhaustedError if decided == "EXHAUSTED" else DecidedOtherwiseError


def _advice(name: Named, decided: str, target: DecidedState | None) -> str:
    if decided == "EXHAUSTED":
        command = "rollback" if target is DecidedState.ROLLED_BACK else "commit"
        return f"Its checks or age are used up; an operator decides: outbox tx {command} {name.message_id} --reason …"
    if target is None:
        return "There is no local transaction left to join; roll this one back"
    return f"It cannot become {target}; roll this transaction back, so that what hangs on it is undone"


def _take_order_lock(name: Named) -> Plan[None]:
    rows = yield Statement(within_range(_SQL["lock_order_key_of"], name.id), name.params)
    if rows and not rows[0][0]:
        raise InvalidMessageError(
            "order_key", "missing, ordered=True has nothing to order by", "order_key or key"
        )


def time_of(microseconds: int) -> datetime:
    """A moment that a statement returned."""
    return EPOCH + timedelta(microseconds=microseconds)


def unknown(message_id: UUID) -> UnknownMessageError:
    """No row: the error that explains why that can be."""
    return UnknownMessageError(
        f"no message {message_id} is visible to this transaction: its own was rolled back or has not committed yet, "
        "this one's snapshot is older, or its partition was dropped. Allowed: an id that prepare or send returned"
    )


def _undecidable(name: Named) -> OutboxError:
    return OutboxError(
        f"message {name.message_id} is UNKNOWN and takes no decision: a trigger or a policy of this database keeps "
        "outbox.message from being updated"
    )


def _uuid(argument: str, value: Any) -> UUID:
    if isinstance(value, UUID):
        return value
    if isinstance(value, str):
        value = validation.exact(value)
        try:
            return UUID(validation.text(argument, value))
        except ValueError:
            pass
        raise UnknownMessageError(
            f"{argument}: {value[:60]!r} is not a message id; expected what prepare or send returned, or the UUID in "
            "the header outbox-id (a business id is not one: see outbox tx ls --biz-id)"
        )
    shown = type(value).__name__
    raise ConfigurationError(
        f"{argument}: {shown} does not identify a message; allowed: HalfMessage, Receipt, MessageView, UUID or its text"
    )
