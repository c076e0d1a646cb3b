"""The driver for asyncpg's connections.

asyncpg asks the server for the type of each parameter and wants a value of Python's type for it, where the plans bind
untyped text. So each statement is sent with its parameters cast: `$3` for a timestamptz becomes
`($3::text)::"timestamptz"`, and the server reads the text as it does for psycopg. The types are the server's own: the
statement is prepared once as it stands, which is a round trip for a statement's first use in a process.

asyncpg has no codecs of one statement. Those that the application sets for other types than text and bytea do not
matter: nothing else is bound, and results are made plain. One for text or bytea also applies to what the outbox writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from outbox.errors import InvalidConnectionError, NoTransactionError, add_migration_hint
from outbox.statements import ByteaArray, Param, Plan, Statement, TextArray

T = TypeVar("T")
_PARAMETER = re.compile(r"\$(\d+)")
_MOST_REMEMBERED = 500
_PLAIN: dict[str, Callable[[Any], Any]] = {
    "uuid": lambda value: UUID(str(value)),
    **dict.fromkeys(("int2", "int4", "int8"), int),
    "bytea": bytes,
}
"""How values of a type are made plain, whatever codec of the application read them."""


class _Cast(NamedTuple):
    """A statement whose parameters are text, bytea or arrays of these, and the types of its columns."""

    text: str
    columns: Sequence[Callable[[Any], Any] | None]


_CASTS: dict[tuple[str, tuple[bool, ...]], _Cast] = {}
"""By the text of the statement, and which of its parameters are arrays of text."""


async def run(conn: Any, plan: Plan[T]) -> T:
    """Run a plan as `psycopg_async.run` does, on a connection of asyncpg or of its pool.

    Raises:
        InvalidConnectionError: it is of another kind.
        NoTransactionError: no transaction is open.
    """
    if not isinstance(conn, asyncpg.Connection | PoolConnectionProxy):
        raise InvalidConnectionError(
            f"conn: is {type(conn).__module__}.{type(conn).__qualname__}; allowed here: asyncpg.Connection"
        )
    if not conn.is_in_transaction():
        raise NoTransactionError(
            "conn: is outside a transaction, so the message would be committed by itself, apart from your rows; "
            "allowed: send inside `async with conn.transaction():`"
        )
    try:
        statement = next(plan)
        while True:
            try:
                rows = await _execute(conn, statement)
            except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                add_migration_hint(error, getattr(error, "sqlstate", None))
                statement = plan.throw(error)
            else:
                statement = plan.send(rows)
    except StopIteration as done:
        result: T = done.value
        return result


async def _execute(conn: Any, statement: Statement) -> list[tuple[Any, ...]]:
    if not statement.answers and not statement.params:
        await conn.execute(statement.text)
        return []
    key = (statement.text, tuple(isinstance(param, TextArray) for param in statement.params))
    cast = _CASTS.get(key)
    if cast is None:
        prepared = await conn.prepare(statement.text)
        if len(_CASTS) >= _MOST_REMEMBERED:
            _CASTS.clear()
        cast = _CASTS[key] = _Cast(
            cast_parameters(statement.text, prepared.get_parameters(), key[1]),
            [_PLAIN.get(column.type.name) for column in prepared.get_attributes()],
        )
    rows = await conn.fetch(cast.text, *map(_bound, statement.params), record_class=asyncpg.Record)
    return [_plain(cast.columns, row) for row in rows]


def cast_parameters(text: str, types: Iterable[Any], arrays: Sequence[bool]) -> str:
    """Cast the parameters of a statement from text to the types that the server has inferred.

    Args:
        text: the statement; a literal in it holds no `$1`.
        types: of the parameters, as asyncpg's `get_parameters` returns them.
        arrays: which of them are bound as lists of text.
    """
    casts = [
        _cast(f"${number}", type_, is_array=is_array)
        for number, (type_, is_array) in enumerate(zip(types, arrays, strict=True), 1)
    ]
    return _PARAMETER.sub(lambda found: casts[int(found[1]) - 1], text)


def _cast(parameter: str, type_: Any, *, is_array: bool) -> str:
    if type_.name in {"bytea", "bytea[]"}:
        return f"{parameter}::{type_.name}"
    if is_array:
        return f"{parameter}::text[]"
    element, brackets = type_.name.removesuffix("[]"), "[]" if type_.name.endswith("[]") else ""
    return f'({parameter}::text)::"{type_.schema}"."{element}"{brackets}'


def _bound(param: Param) -> Any:
    if isinstance(param, ByteaArray | TextArray):
        return list(param.items)
    return param


def _plain(columns: Sequence[Callable[[Any], Any] | None], row: Any) -> tuple[Any, ...]:
    return tuple(
        value if plain is None or value is None else plain(value)
        for plain, value in zip(columns, row, strict=True)
    )
