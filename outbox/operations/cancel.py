"""Cancelling a delayed message, as logic without I/O: either it is cancelled or it is too late, never both."""

from __future__ import annotations

from outbox.errors import DecidedOtherwiseError, NotDelayedError, OutboxError, TooLateError, constraint_of
from outbox.operations.decide import AnyMessage, Decision, Named, named, time_of, unknown
from outbox.operations.remarks import checked_remark
from outbox.statements import Plan, Rows, Statement, load

_SQL = load("cancel.sql")
_RELEASED = "message_is_waiting"
"""The rule that the table's trigger names when the relay was first."""


def cancel(message: AnyMessage, remark: str | None) -> Plan[Decision]:
    """Cancel a message before its delivery; one round trip while its time has not come.

    Raises:
        TooLateError: it was released to the relay.
        NotDelayedError: It has no delivery time, or is a half message that is not committed.
        DecidedOtherwiseError: it was rolled back.
        UnknownMessageError, ConfigurationError: as for `decisions.decide`.
    """
    remark = checked_remark(remark)
    name = yield from named("message_id", message)
    cancelled = (*name.params, remark)
    rows = yield Statement(_SQL["cancel"], cancelled)
    if rows:
        return _decision(rows)
    found = yield Statement(_SQL["read_cancelled"], name.params)
    earlier = _earlier(name, found)
    if earlier is not None:
        return earlier
    # Due, or seen only now. The relay may release it at this very moment, and then the trigger refuses.
    yield Statement(_SQL["savepoint"], answers=False)
    try:
        rows = yield Statement(_SQL["cancel_overdue"], cancelled)
    except Exception as error:
        if constraint_of(error) != _RELEASED:
            raise
        yield Statement(_SQL["undo"], answers=False)
        yield Statement(_SQL["release"], answers=False)
        raise TooLateError(
            f"message {name.message_id} was due at {time_of(found[0][1]).isoformat(sep=' ')} and is released: it is "
            "published, or will be in a moment. See outbox.message_status for its partition and offset"
        ) from None
    yield Statement(_SQL["release"], answers=False)
    if rows:
        return _decision(rows)
    # It changed between two statements, to something final.
    earlier = _earlier(name, (yield Statement(_SQL["read_cancelled"], name.params)))
    if earlier is None:
        raise OutboxError(
            f"message {name.message_id} cannot be updated: a trigger or a policy keeps it as it is"
        )
    return earlier


def _decision(rows: Rows, *, repeated: bool = False) -> Decision:
    state, by, at, reason = rows[0]
    return Decision(state, by, time_of(at), reason, repeated)


def _earlier(name: Named, rows: Rows) -> Decision | None:
    """What became of the message before: cancelled is fine, all else an error; None if it still is to be delivered."""
    if not rows:
        raise unknown(name.message_id)
    state, deliver_at, _due, by, at, reason = rows[0]
    what = f"message {name.message_id} is {state}"
    if state == "CANCELLED":
        return Decision(state, by, time_of(at), reason, repeated=True)
    if state in ("UNKNOWN", "EXHAUSTED"):
        raise NotDelayedError(
            f"{what}: a half message is delayed only after its commit; to withdraw it, call rollback(conn, half)"
        )
    if state == "ROLLED_BACK":
        raise DecidedOtherwiseError(
            f"{what} since {time_of(at).isoformat(sep=' ')}, by {by}: it is never delivered, and cannot be cancelled",
            message_id=name.message_id,
            state=state,
            by=by,
            at=time_of(at),
            reason=reason,
        )
    if state != "COMMITTED":
        raise TooLateError(f"{what}: the relay has dealt with it, so it cannot be cancelled")
    if deliver_at is None:
        raise NotDelayedError(
            f"{what} and has no deliver_at: it is published as soon as it is committed; allowed: a delayed message"
        )
    return None
