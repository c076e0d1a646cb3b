"""What a local transaction came to: the three answers that a listener or a checker may give, by every name they have.

RocketMQ 4.x calls the type `LocalTransactionState`, RocketMQ 5.x `TransactionResolution`; here they are one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from outbox.describing import describe

LONGEST_REMARK = 500
"""Characters of a remark that are kept: an exception's text may be of any length."""


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
    not a state is a `FailedAnswer`: it says nothing about the local transaction, and must not lead to the policy. Its
    remark does not quote the value, because that may be business data which operators must not read.
    """
    if isinstance(value, Answer):
        if value.state not in LocalTransactionState.__members__.values():
            return _no_state("an Answer with another state")
        return type(value)(LocalTransactionState(value.state), shortened(value.remark))
    if isinstance(value, bool):
        return Answer(LocalTransactionState.COMMIT if value else LocalTransactionState.ROLLBACK)
    if isinstance(value, str):
        found = LocalTransactionState.__members__.get(value.upper())
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
    """UNKNOWN with RocketMQ's remark, "`where` exception: …": an exception says nothing about what was committed."""
    return FailedAnswer(LocalTransactionState.UNKNOWN, shortened(f"{where} exception: {describe(error)}"))


def shortened(remark: str | None) -> str | None:
    """Cut a remark to what is kept, without characters that PostgreSQL's text cannot hold."""
    if remark is None:
        return None
    remark = remark.replace("\0", "�").encode("utf-8", "replace").decode()
    return remark if len(remark) <= LONGEST_REMARK else remark[: LONGEST_REMARK - 1] + "…"
