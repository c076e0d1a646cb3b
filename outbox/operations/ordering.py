"""The locks of `ordered=True`: one per (topic, order key), a bounded number in a transaction.

The server's lock table is shared by all databases of the cluster and holds some ten thousand entries. A transaction
that filled it would let others fail with "out of shared memory", whatever they do. Why a limit, and neither fewer
locks nor coarser ones: docs/adr/0005.
"""

from __future__ import annotations

from outbox.errors import TooManyOrderedKeysError
from outbox.message import Message
from outbox.operations.rows import load_rows
from outbox.statements import ByteaArray, Plan, Statement, TextArray

_SQL = load_rows("send.sql")

ORDERED_KEYS = 1_000
"""Different (topic, order key) pairs that one transaction may lock with `ordered=True`."""
MOST_ORDERED_KEYS = str(ORDERED_KEYS)


def lock_order_keys(messages: list[Message]) -> Plan[None]:
    """Take the locks of these messages' order keys, in one order for all callers.

    Raises:
        TooManyOrderedKeysError: the transaction would hold more than `ORDERED_KEYS`; none was taken.
    """
    keys = _keys(messages)
    if len(keys[0].items) > ORDERED_KEYS:
        raise too_many_keys()
    statement = Statement(_SQL["lock_order_keys"], (*keys, MOST_ORDERED_KEYS))
    if (yield statement):
        return
    yield recount(messages)
    if not (yield statement):
        raise too_many_keys()


def recount(messages: list[Message]) -> Statement:
    """Return the statement that counts the locks held exactly, without those of these messages."""
    return Statement(_SQL["recount_order_keys"], _keys(messages))


def too_many_keys() -> TooManyOrderedKeysError:
    """Make the error that states the limit and the ways round it."""
    return TooManyOrderedKeysError(
        "ordered",
        f"this transaction would lock more than {ORDERED_KEYS:,} different order keys, in a lock table that it "
        "shares with the whole cluster",
        f"several transactions of at most {ORDERED_KEYS:,} keys, or ordered=False after a write that serialises "
        "each key, such as SELECT … FOR UPDATE of its row",
    )


def _keys(messages: list[Message]) -> tuple[TextArray, ByteaArray]:
    distinct = {(message.topic, message.arg_bytes) for message in messages}
    names, keys = zip(*distinct, strict=True)
    return TextArray(names), ByteaArray(keys)
