"""What both psycopg drivers share: the adapters of our own cursors, and the checks of the connection.

Values are adapted by our own map, not the connection's: a dumper or loader that the application registers must not
change what the outbox writes. Every type is left to the server (oid 0), whether a value is null or not, so one
statement is one prepared plan; psycopg distinguishes plans by text *and* parameter types.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

import psycopg
from psycopg import pq
from psycopg.abc import AdaptContext
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.types.string import BytesBinaryDumper, StrDumperUnknown
from psycopg.types.uuid import UUIDLoader

from outbox.errors import InvalidConnectionError, NoTransactionError
from outbox.statements import ByteaArray, TextArray

_ARRAY = Struct("!iiIii").pack
_EMPTY = Struct("!iiI").pack
_LENGTH = Struct("!i").pack
_NULL = _LENGTH(-1)
_LENGTHS = [_LENGTH(n) for n in range(1024)]
_BYTEA_OID = 17
_TEXT_OID = 25


class _BytesDumper(BytesBinaryDumper):
    """Binary bytea without a declared type."""

    oid = 0


class _ByteaArrayDumper(Dumper):
    """A one-dimensional bytea[] in PostgreSQL's binary form, some ten times faster than psycopg's lists."""

    format = pq.Format.BINARY

    def dump(self, obj: ByteaArray) -> bytes:
        return _array(_BYTEA_OID, obj.items)


class _TextArrayDumper(Dumper):
    """The same for text[]; like psycopg's own text it is in the client encoding."""

    format = pq.Format.BINARY

    def __init__(self, cls: type, context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        self._encoding = self.connection.info.encoding if self.connection else "utf-8"

    def dump(self, obj: TextArray) -> bytes:
        encoding = self._encoding
        return _array(_TEXT_OID, [item if item is None else item.encode(encoding) for item in obj.items])


def _array(oid: int, items: Sequence[bytes | None]) -> bytes:
    if not items:
        return _EMPTY(0, 0, oid)
    parts = [_ARRAY(1, 1, oid, len(items), 1)]
    put = parts.append
    for item in items:
        if item is None:
            put(_NULL)
        else:
            length = len(item)
            put(_LENGTHS[length] if length < 1024 else _LENGTH(length))
            put(item)
    return b"".join(parts)


def _adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    adapters.register_dumper(str, StrDumperUnknown)
    adapters.register_dumper(bytes, _BytesDumper)
    adapters.register_dumper(ByteaArray, _ByteaArrayDumper)
    adapters.register_dumper(TextArray, _TextArrayDumper)
    adapters.register_loader("uuid", UUIDLoader)
    return adapters


ADAPTERS = _adapters()


# By the beginning of a type's name, since none of these is imported here.
_WRAPPERS = (
    ("sqlalchemy.ext.asyncio.", "; use outbox.adapters.sqlalchemy.AsyncSQLAlchemyOutbox for it"),
    ("sqlalchemy.", "; use outbox.adapters.sqlalchemy.SQLAlchemyOutbox for it"),
    ("django.", "; use outbox.adapters.django.DjangoOutbox for it"),
    ("asyncpg.", "; use outbox.adapters.asyncpg.AsyncpgOutbox for it"),
)


def _unwrapped(given: str) -> str:
    """What to pass instead of a well-known wrapper."""
    return next((hint for start, hint in _WRAPPERS if given.startswith(start)), "")


def require_transaction(conn: Any, kind: type[Any], other: type[Any], outbox: str) -> None:
    """Refuse what is not a connection of this kind, and a connection that would commit each statement by itself.

    Raises:
        InvalidConnectionError: naming what was given and what to do.
        NoTransactionError: autocommit outside a transaction.
    """
    if not isinstance(conn, kind):
        given = f"{type(conn).__module__}.{type(conn).__qualname__}"
        hint = f"; use {outbox} for it" if isinstance(conn, other) else _unwrapped(given)
        raise InvalidConnectionError(f"conn: is {given}{hint}; allowed here: psycopg.{kind.__name__}")
    if conn.autocommit and conn.info.transaction_status == pq.TransactionStatus.IDLE:
        raise NoTransactionError(
            "conn: is in autocommit and outside a transaction, so the message would be committed by itself, apart from "
            "your rows; allowed: send inside `with conn.transaction():`, or a connection without autocommit"
        )
