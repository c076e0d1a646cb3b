"""What a task does with a range of new messages: COPY into Arrow, the columns of message_history, Parquet files.

A task either returns all files of its range, each complete, or none and the reason: the driver then lets Spark read
that range, row by row. Whatever may not come out as Spark's expressions have it (`UnsureError`) is left to them, and so
is the report of every error.

A task that dies, or runs twice, leaves files of a name that no other attempt gives; the driver commits only files that
a task has returned. `outbox etl maintain` deletes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import uuid
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outbox_etl.warehouse.files import date_of, remove, write_checksums
from outbox_etl.warehouse.tables import EARLIEST, LATEST

ROW_GROUP = 32 << 20
"""Bytes of Arrow that become a row group; a task keeps about twice as much in memory."""
ORDINARY_BODY, ORDINARY_NAME, ORDINARY_DEPTH = 1 << 20, 8_000, 400
"""Up to here, Spark's parser has no limit that the parsers here do not have: bytes of a body, characters of a name,
arrays and objects in each other."""
SHORT_BODY, MANY_BRACKETS, LONG_NUMBER = 1_000, 400, b"0" * 300
"""Up to so many bytes no number is too long for Spark; beyond the others a body may not be ordinary."""
MANY_NAMES = 150
"""Headers with more names, or with one that is not ordinary, may be beyond a limit of Spark's parser."""
DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
PUBLICATION = ("published_at", "partition", "offset")
_ENVIRONMENT = threading.Lock()


class UnsureError(Exception):
    """What only Spark can treat; the text is reported, and shows no value."""


@dataclass(frozen=True, slots=True)
class Order:
    """One range of messages to be written."""

    begin: tuple[str, ...]
    """Statements that begin the transaction."""
    query: str
    window_hi: int
    place: str
    """The folder of the table's data files."""
    name: str
    """What the names of its files begin with."""
    schema: bytes
    """The columns of the files, in their order, with Iceberg's ids; Arrow's serialization."""
    day: str
    """The column by whose day the table is partitioned."""
    file_bytes: int
    """Size from which on a file is ended and the next one begun."""


Written = tuple[list[tuple[str, int, int]], str]
"""What became of an order: files with their day (days since 1970) and their bytes, or why no file was written."""


def work(conninfo: str, order: Order) -> Written:
    """Write the range of an order; whatever goes wrong is returned, and leaves no file."""
    files = Files(order)
    try:
        for batch in read(conninfo, order.begin, order.query):
            files.add(rows_of(batch, order))
        files.close()
    except Exception as error:  # noqa: BLE001  (Spark reads the range then, and reports what is wrong with it)
        files.discard()
        return [], reason_of(error)
    return files.ended, ""


def reason_of(error: Exception) -> str:
    """The reason why Spark has to read; the text of an error that is not ours may show what is in a row."""
    return str(error) if isinstance(error, UnsureError) else type(error).__name__


def read(conninfo: str, begin: Iterable[str], query: str) -> Generator[Any, None, None]:
    """The rows of a query, as Arrow's batches of some megabytes; `begin` are statements that begin its transaction."""
    with copied(conninfo, begin, query) as batches:
        yield from batches


@contextlib.contextmanager
def copied(conninfo: str, begin: Iterable[str], query: str) -> Iterator[Any]:
    """A reader of the same rows."""
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415  (only where tasks run)

    try:
        with no_variables():
            connection = dbapi.connect(conninfo)
    except dbapi.Error as error:
        raise UnsureError(f"no connection for COPY: {error}") from None
    with connection, connection.cursor() as cursor:
        for statement in begin:
            cursor.execute(statement)
        cursor.execute(query)
        yield cursor.fetch_record_batch()
        connection.rollback()


@contextlib.contextmanager
def no_variables() -> Iterator[None]:
    """Hide what libpq reads from the environment, and JDBC does not: PGOPTIONS, PGHOSTADDR, PGSSLMODE and others.

    One thread at a time: another one would see what the first has put back.
    """
    with _ENVIRONMENT:
        names = [name for name in os.environ if name.startswith("PG") and name != "PGPASSFILE"]
        hidden = {name: os.environ.pop(name) for name in names}
        try:
            yield
        finally:
            os.environ.update(hidden)


def rows_of(batch: Any, order: Order) -> Any:
    """The columns of message_history."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    batch.validate(full=True)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    committed = pc.equal(columns["state"], "COMMITTED")
    for name in PUBLICATION:
        columns[name] = pc.if_else(committed, columns[name], pa.scalar(None, columns[name].type))
    is_published = pc.and_(committed, pc.is_valid(columns["published_at"]))
    columns["status"] = pc.if_else(is_published, "PUBLISHED", columns["state"])
    columns["headers"] = headers_of(columns["headers"])
    columns["body_json"] = json_of(columns["body"])
    columns["window_hi"] = pa.repeat(pa.scalar(order.window_hi, pa.int64()), batch.num_rows)
    schema = pa.ipc.read_schema(pa.py_buffer(order.schema))
    arrays = [columns[each.name].cast(each.type) for each in schema]
    for each, array in zip(schema, arrays, strict=True):
        if pa.types.is_timestamp(each.type):
            need_years(each.name, array.cast(pa.int64()))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def need_years(name: str, microseconds: Any) -> None:
    """Raise UnsureError unless these times are in the years 1900 to 9999."""
    import pyarrow.compute as pc  # noqa: PLC0415

    found = pc.min_max(microseconds).as_py()
    if found["min"] is not None and not EARLIEST <= found["min"] <= found["max"] <= LATEST:
        raise UnsureError(f"{name} outside the years 1900 to 9999")


def headers_of(texts: Any) -> Any:
    """Headers as maps; messages have few different ones."""
    import pyarrow as pa  # noqa: PLC0415

    found = texts.dictionary_encode()
    maps = [list(_header(text).items()) for text in found.dictionary.to_pylist()]
    return pa.array(maps, pa.map_(pa.string(), pa.string())).take(found.indices)


def _header(text: str) -> dict[str, str | None]:
    found = json.loads(text)
    if not isinstance(found, dict) or not all(
        value is None or isinstance(value, str) for value in found.values()
    ):
        raise UnsureError("headers that are not an object of strings")
    if len(found) > MANY_NAMES or any(len(name) > ORDINARY_NAME for name in found):
        raise UnsureError("headers with a long name, or with many")
    return found


def json_of(bodies: Any) -> Any:
    """The bodies that are one JSON value, as text; the others null."""
    import orjson  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    loads, refused = orjson.loads, []
    for place, body in enumerate(bodies.to_pylist()):
        if body is None:
            continue
        if len(body) > MANY_BRACKETS and _is_unusual(body):
            if not is_json(body):
                refused.append(place)
            continue
        try:
            loads(body)
        except ValueError:
            # It refuses some that are JSON: a lone surrogate, a number beyond a double.
            if not is_json(body):
                refused.append(place)
    if refused:
        kept = [True] * len(bodies)
        for place in refused:
            kept[place] = False
        bodies = pc.if_else(pa.array(kept), bodies, pa.scalar(None, bodies.type))
    return bodies.cast(pa.string())


def _is_unusual(body: bytes) -> bool:
    """Whether a body may be beyond a limit: its levels, a number, or a name (which a quote inside would hide)."""
    if body.count(b"[") + body.count(b"{") > MANY_BRACKETS or _has_long_number(body):
        return True
    return len(body) > ORDINARY_NAME and (
        b'\\"' in body or max(map(len, body.split(b'"'))) > ORDINARY_NAME or len(body) > ORDINARY_BODY
    )


def _has_long_number(body: bytes) -> bool:
    return len(body) > SHORT_BODY and LONG_NUMBER in body.translate(DIGITS)


def is_json(body: bytes) -> bool:
    """Whether a body is one JSON value, as Spark's parser has it.

    Raises:
        UnsureError: it may be beyond a limit of Spark's parser.
    """
    if len(body) > ORDINARY_BODY:
        raise UnsureError(f"a body of more than {ORDINARY_BODY} bytes")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return False
    if _has_long_number(body):
        raise UnsureError("a body with a number of hundreds of digits")
    try:
        found = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise UnsureError("a body of many levels") from None
    except ValueError:
        if text.count("[") + text.count("{") > ORDINARY_DEPTH:
            raise UnsureError("a body of many brackets that is not JSON") from None
        return False
    if _is_unusual(body):
        _need_ordinary(found)
    return True


def _need_ordinary(value: Any) -> None:
    level = [value]
    for _ in range(ORDINARY_DEPTH):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                if any(len(name) > ORDINARY_NAME for name in each):
                    raise UnsureError("a body with a name of thousands of characters")
                below.extend(each.values())
            elif isinstance(each, list):
                below.extend(each)
        if not below:
            return
        level = below
    raise UnsureError("a body of many levels")


def _refuse(constant: str) -> None:
    raise ValueError(constant)


class Files:
    """The files of one range, one or more for each day."""

    def __init__(self, order: Order) -> None:
        self.ended: list[tuple[str, int, int]] = []
        self._order = order
        # (an attempt that Spark gave up may still be writing)
        self._name = f"{order.name}-{uuid.uuid4().hex}"
        self._waiting: dict[int, list[Any]] = {}
        self._bytes = 0
        self._open: dict[int, tuple[str, Any, Any]] = {}
        self._made: list[str] = []

    def add(self, batch: Any) -> None:
        """Take rows; write them once there are enough for a row group."""
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.compute as pc  # noqa: PLC0415

        if not batch.num_rows:
            return
        days = batch.column(self._order.day).cast(pa.date32(), safe=False).cast(pa.int32())
        found = pc.unique(days).to_pylist()
        for day in found:
            part = batch if len(found) == 1 else batch.filter(pc.equal(days, day))
            self._waiting.setdefault(day, []).append(part)
        self._bytes += batch.nbytes
        if self._bytes >= ROW_GROUP:
            self._write()

    def close(self) -> None:
        """Write what is left, and end all files."""
        self._write()
        for day in list(self._open):
            self._end(day)

    def discard(self) -> None:
        """Remove every file that was made."""
        for _, writer, sink in self._open.values():
            with contextlib.suppress(Exception):
                writer.close()
            with contextlib.suppress(Exception):
                sink.close()
        remove(self._made)

    def _write(self) -> None:
        import pyarrow as pa  # noqa: PLC0415

        waiting, self._waiting, self._bytes = self._waiting, {}, 0
        for day, batches in waiting.items():
            table = pa.Table.from_batches(batches)
            _, writer, sink = self._open.get(day) or self._begin(day, table.schema)
            writer.write_table(table, row_group_size=max(table.num_rows, 1))
            if sink.tell() >= self._order.file_bytes:
                self._end(day)

    def _begin(self, day: int, schema: Any) -> tuple[str, Any, Any]:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        folder = Path(self._order.place) / f"{self._order.day}_day={date_of(day)}"
        folder.mkdir(parents=True, exist_ok=True)
        path = str(folder / f"{self._name}-{len(self._made):05d}.parquet")
        self._made.append(path)
        sink = pa.OSFile(path, "wb")
        writer = pq.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            compression_level=3,
            use_dictionary=True,
            dictionary_pagesize_limit=128 << 10,
            store_schema=False,
        )
        self._open[day] = path, writer, sink
        return self._open[day]

    def _end(self, day: int) -> None:
        path, writer, sink = self._open.pop(day)
        writer.close()
        sink.close()
        write_checksums(path)
        self.ended.append((path, day, Path(path).stat().st_size))
