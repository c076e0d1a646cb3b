"""Errors of the relay's own, apart from those of PostgreSQL, Kafka and other relays."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from outbox_relay.database.connections import DatabaseUnreachableError
from outbox_relay.publisher.errors import BrokenError, KafkaUnavailableError
from outbox_relay.publisher.kafka import KafkaSettingError
from outbox_relay.publisher.lease import LeaseLostError

# What PostgreSQL, Kafka and other relays do, and what the relay itself deals with.
_PASSED_ON = (
    BrokenError, LeaseLostError, KafkaUnavailableError, KafkaSettingError, DatabaseUnreachableError, psycopg.Error,
)  # fmt: skip
_DEFECTS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


@contextmanager
def naming_defects() -> Iterator[None]:
    """Turn an error that no outside event explains into BrokenError, with the place where it was raised.

    Only while messages are published and recorded: ended there, the relay would be started again and would publish
    the same messages again, as fast as a supervisor can.
    """
    try:
        yield
    except _PASSED_ON:
        raise
    except _DEFECTS as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error)[:500]}"
        raise BrokenError(
            f"internal error in {frame.name} ({frame.filename}:{frame.lineno}): {text}"
        ) from error
