"""What a local transaction came to: COMMIT, ROLLBACK or UNKNOWN, by every name that RocketMQ has for them.

RocketMQ 4.x calls the type `LocalTransactionState`, RocketMQ 5.x `TransactionResolution`; here they are one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from outbox.checking.describing import error_text
from outbox.operations.remarks import shortened
from outbox.validation import exact


class LocalTransactionState(StrEnum):
    """How a local transaction ended; UNKNOWN leaves the half message to be asked about later."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"
    # RocketMQ 4.x, in its own spelling.
    COMMIT_MESSAGE = COMMIT
    ROLLBACK_MESSAGE = ROLLBACK
    UNKNOW = UNKNOWN


TransactionResolution = LocalTransactionState


class Answer(NamedTuple):
    """An answer, with why it is what it is; the remark is shown to operators and kept in the audit."""

    state: LocalTransactionState
    remark: str | None = None


class FailedAnswer(Answer):
    """UNKNOWN because asking itself failed: no connection, no answer in time, a malformed answer, an exception.

    It counts as a check like any UNKNOWN, but no policy follows it. Failures in a row open the group's circuit breaker.
    """


def answer_of(value: Any) -> Answer:
    """Read what a listener returned; everything that is not clearly COMMIT or ROLLBACK is UNKNOWN.

    True is COMMIT and False is ROLLBACK, as RocketMQ's users write `check(bizId, txId) -> Boolean`. Names are taken
    as well ("COMMIT_MESSAGE", "rollback"). None is UNKNOWN, as in RocketMQ; nothing else is read as truth. What is
    not a state is a `FailedAnswer`: it proves nothing about the local transaction, so no policy follows. Its
    remark does not quote the value, because that may be business data which operators must not read.
    """
    if isinstance(value, Answer):
        if value.state not in LocalTransactionState.__members__.values():
            return _no_state("an Answer of another state")
        return type(value)(LocalTransactionState(value.state), shortened(value.remark))
    if isinstance(value, bool):
        return Answer(LocalTransactionState.COMMIT if value else LocalTransactionState.ROLLBACK)
    if isinstance(value, str):
        found = LocalTransactionState.__members__.get(exact(value).upper())
        if found is not None:
            return Answer(found)
        return _no_state("another text")
    if value is None:
        return Answer(LocalTransactionState.UNKNOWN, "answer is None")
    return _no_state(f"an object of {type(value).__name__}")


def _no_state(found: str) -> FailedAnswer:
    why = f"answer is not a state: expected COMMIT, ROLLBACK or UNKNOWN, got {found}"
    return FailedAnswer(LocalTransactionState.UNKNOWN, shortened(why))


def answer_of_error(where: str, error: BaseException) -> FailedAnswer:
    """UNKNOWN with RocketMQ's remark, "`where` exception: …": an exception does not show what was committed."""
    return FailedAnswer(LocalTransactionState.UNKNOWN, shortened(f"{where} exception: {error_text(error)}"))
