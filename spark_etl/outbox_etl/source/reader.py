"""Reading the outbox through JDBC: a window's rows, in parallel, by ranges of ids."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from outbox_etl.errors import ConcurrentRunError, SourceError
from outbox_etl.source.clock import refuse_ahead
from outbox_etl.source.window import Cluster, Horizon, Window
from outbox_etl.statements import statement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from outbox_etl.options.settings import Settings

SQL = "source.sql"
DRIVER = "org.postgresql.Driver"
OLDEST_SERVER = 140000
PATIENCE = 10
"""Seconds that a session waits for a standby that is behind the run."""
LEAST_RANGE = 20_000
"""Ids below which a further connection costs more than it brings."""
MOST_RANGE = 250_000
"""Ids of new messages that one task reads: PostgreSQL sorts and hashes their publications in some 40 MB."""
KNOWN = {
    "message": {
        "xid": "xid8", "position": "bigint", "id": "bigint", "message_id": "uuid",
        "born_at": "timestamp with time zone",
        "decided_at": "timestamp with time zone", "deliver_at": "timestamp with time zone",
        "deliver_before": "timestamp with time zone", "check_after": "interval",
        "queue": "integer", "lane": "smallint", "state": "text", "topic": "text", "key": "bytea", "body": "bytea",
        "headers": "jsonb", "order_key": "bytea", "selector": "text", "tags": "text[]", "index_keys": "text[]",
        "producer_group": "text", "transaction_id": "text", "checker": "text", "biz_type": "text", "biz_id": "text",
        "traceparent": "text", "remark": "text",
    },
    "event": {
        "xid": "xid8", "id": "bigint", "happened_at": "timestamp with time zone", "message_id": "uuid", "kind": "text",
        "from_state": "text", "to_state": "text", "answer": "text", "actor": "text", "reason": "text",
    },
    "publication": {
        "xid": "xid8", "epoch": "bigint", "batch": "bigint", "lo": "bigint", "hi": "bigint",
        "published_at": "timestamp with time zone", "positions": "bigint[]", "partitions": "integer[]",
        "offsets": "bigint[]",
    },
}  # fmt: skip
"""The columns that are read, with their types. Others may be there: a newer schema adds columns, and leaves these as
they are."""

SOURCES = {"transaction_events": "event", "publications": "publication"}
"""What the rows of the warehouse's tables are made from."""


@dataclass(frozen=True, slots=True)
class Ids:
    """A range of ids, from `lower` (inclusive) to `upper` (exclusive)."""

    lower: int
    upper: int

    def meets(self, other: Ids) -> bool:
        """Whether they have an id in common."""
        return max(self.lower, other.lower) < min(self.upper, other.upper)

    def cut(self, other: Ids) -> Ids:
        """The ids that they have in common."""
        return Ids(max(self.lower, other.lower), min(self.upper, other.upper))

    def hold(self, column: str) -> str:
        """The condition, as SQL, that a column's value is one of them."""
        return f"{column} >= {self.lower} AND {column} < {self.upper}"


def lies_among(column: str, ranges: Iterable[Ids]) -> str:
    """The condition, as SQL, that a column's value lies in one of the ranges."""
    return " OR ".join(f"({ids.hold(column)})" for ids in ranges) or "false"


class Source:
    """The outbox of one database."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark, self._settings = spark, settings
        self._ranges: Sequence[Ids] | None = None
        self._check = ""

    def ask(self, name: str) -> list[dict[str, Any]]:
        """Run one named statement from the driver, where a small answer costs no job of Spark."""
        return self.bind(statement(SQL, name))

    def bind(self, text: str, *values: str | int) -> list[dict[str, Any]]:
        """Run a statement that returns rows from the driver, with a value bound to each of its question marks."""
        with self._transaction() as connection:
            return _answer(connection, text, *values)

    def expect(self, cluster: Cluster, hi: int) -> None:
        """Insist that whatever is read from now on is read where every transaction below `hi` of `cluster` has ended.

        A DSN may lead to several servers, and a standby that is behind shows fewer rows without a word.
        """
        server = statement(SQL, "server")
        self._check = statement(
            SQL, "same_server", server=server, patience=PATIENCE, hi=hi, timeline=cluster.timeline,
            database=cluster.database, system_identifier=cluster.system_identifier,
        )  # fmt: skip

    def check(self) -> None:
        """Refuse a server or a schema that the job does not know.

        Raises:
            SourceError: naming the column and the types.
        """
        found = {(row["table"], row["column"]): row["type"] for row in self.ask("columns")}
        for table, columns in KNOWN.items():
            for column, kind in columns.items():
                is_there = found.get((table, column))
                if is_there != kind:
                    what = f"is of type {is_there}" if is_there else "is missing"
                    raise SourceError(
                        f"outbox.{table}.{column} {what}, expected {kind}: "
                        "use the job of that schema's release"
                    )

    def cluster(self) -> Cluster:
        """Return the cluster whose xids these are; no other server is read from now on."""
        with self._transaction() as connection:
            [server] = _answer(connection, statement(SQL, "server"))
            [now] = _answer(connection, statement(SQL, "horizon"))
        self.expect(found := _cluster(server), now["hi"])
        return found

    def horizon(self, *, of_all: bool = False) -> Horizon:
        """Return up to where everything has ended, and make sure that no crash can take it back.

        For a window of everything, search for xids that this cluster cannot have given out. No server that has not
        come as far is read from now on.
        """
        with self._transaction() as connection:
            [server] = _answer(connection, statement(SQL, "server"))
            if server["version"] < OLDEST_SERVER:
                raise SourceError(
                    f"PostgreSQL {server['version'] // 10000} is too old: 14 or newer is needed"
                )
            # Before the snapshot: whatever can be seen now has ended, and lies below the snapshot's end.
            newest = _answer(connection, statement(SQL, "newest"))[0]["xid"] if of_all else 0
            [now] = _answer(connection, statement(SQL, "horizon"))
            wal = now["replayed"]
            if not server["standby"]:  # a standby is sent only what its primary has on disk
                [barrier] = _answer(connection, statement(SQL, "barrier"))
                wal = barrier["wal"]
        cluster, foreign = _cluster(server), newest if newest >= now["next"] else 0
        self.expect(cluster, now["hi"])
        return Horizon(cluster, now["hi"], now["top"], now["next"], foreign, wal, server["standby"])

    @contextlib.contextmanager
    def lock(self, target: str) -> Iterator[None]:
        """Keep other runs from the same target; PostgreSQL gives the lock back when this process dies.

        Raises:
            ConcurrentRunError: another run has it.
            SourceError: PostgreSQL cannot be reached, or this machine's clock is ahead of its.
        """
        with self.connection() as connection:
            name, now = f"outbox.etl {target}", time.time()
            [asked] = _answer(connection, statement(SQL, "lock"), name)
            if not asked["is_ours"]:
                raise ConcurrentRunError(f"another run is writing {target}; let it end, then run again")
            try:
                refuse_ahead(now, asked["now"])
                yield
            finally:
                # The server ends a closed session in its own time; the next run may come before that.
                with contextlib.suppress(Exception):
                    _answer(connection, statement(SQL, "unlock"), name)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A session in a transaction, which a pooler leaves on one server, and this is the one that is expected."""
        with self.connection() as connection:
            connection.setAutoCommit(False)
            connection.createStatement().execute(";\n".join(self.begin()))
            yield connection
            connection.commit()

    @contextlib.contextmanager
    def connection(self) -> Iterator[Any]:
        """A session of the driver's own."""
        jvm: Any = self.spark._jvm
        properties = jvm.java.util.Properties()
        for name, value in self._properties().items():
            properties.setProperty(name, value)
        connection = jvm.org.postgresql.Driver().connect(self._url(), properties)
        try:
            yield connection
        finally:
            with contextlib.suppress(Exception):
                connection.close()

    def ids(self, top: int) -> Sequence[Ids]:
        """The ranges of ids that exist, up to the highest that was given out."""
        if self._ranges is None:
            rows = self.ask("partitions")
            self._ranges = sorted(
                (Ids(row["lower"], row["upper"]) for row in rows), key=lambda ids: ids.lower
            )
        return [Ids(ids.lower, min(ids.upper, top + 1)) for ids in self._ranges if ids.lower <= top]

    def messages(self, window: Window, among: Ids) -> DataFrame:
        """The messages of a window, among a range of ids.

        Among ids that were known before the window, few rows changed: indexes find them, so that a window reads the
        messages that something happened to, however many PostgreSQL keeps.
        """
        first = window.known + 1
        if window.known == 0 or among.lower >= first:
            return self._read("message", window, among)
        known = Ids(among.lower, min(among.upper, first))
        changed = self._read("message", window, known, "is_committed").unionByName(
            self._read("message", window, known, "was_decided")
        )
        if among.upper <= first:
            return changed
        return changed.unionByName(self._read("message", window, Ids(first, among.upper)))

    def touches_known(self, window: Window) -> bool:
        """Whether a window without events of known messages did something to messages that were known before it."""
        text = statement(SQL, "touches_known", limits=_limits(window), known=window.known)
        return bool(self.bind(text)[0]["is_so"])

    def new_messages(self, window: Window, among: Ids) -> DataFrame:
        """Messages of a window that the warehouse does not know, with their first publications and counts of checks.

        Spark would shuffle or broadcast what PostgreSQL has side by side. Its parallel reads take one statement and
        conditions; here each range has a statement of its own.
        """
        return self.new_of(window, self.new_ranges(window, among))

    def new_ranges(self, window: Window, among: Ids) -> list[Ids]:
        """The ranges in which new messages are read, each by one task."""
        return self.ranges(among, window.top, most=MOST_RANGE)

    def new_of(self, window: Window, ranges: Sequence[Ids]) -> DataFrame:
        """The new messages of these ranges."""
        held, joining = self.ids(window.top), statement(SQL, "joining")
        return functools.reduce(
            DataFrame.union, (self.read(new_messages(ids, held, window), begin=joining) for ids in ranges)
        )

    def copies(self, window: Window, ranges: Sequence[Ids]) -> tuple[tuple[str, ...], list[str]]:
        """The same for a reader of COPY: what begins each transaction, and a query for each range."""
        held, begin = self.ids(window.top), (*self.begin(), statement(SQL, "joining"))
        texts = (new_messages(ids, held, window) for ids in ranges)
        return begin, [statement(SQL, "copied", messages=text) for text in texts]

    def begin(self) -> tuple[str, ...]:
        """What begins each transaction: its settings, and the check of its server."""
        settings = statement(SQL, "isolation"), statement(SQL, "settings")
        return (*settings, self._check) if self._check else settings

    def few(self, table: str, window: Window, most: int) -> tuple[tuple[str, ...], str]:
        """For a reader of COPY, up to so many of a window's rows of a table of the warehouse but message_history."""
        return self.begin(), few(table, window, most)

    def events(self, window: Window) -> DataFrame:
        """The events of a window."""
        return self._read("event", window, Ids(0, window.top + 1))

    def publications(self, window: Window) -> DataFrame:
        """The batches of a window that were published."""
        return self._read("publication", window, Ids(0, window.top + 1))

    def _read(self, table: str, window: Window, among: Ids, condition: str = "") -> DataFrame:
        ranges = self.ranges(among, window.top)
        return self.read(query(table, window), [part(ids, window, condition) for ids in ranges])

    def ranges(self, among: Ids, top: int, *, most: int = 0) -> list[Ids]:
        """Divide the ids that exist, up to the highest, for parallel reads of `most` ids, if given."""
        parts = self._settings.partitions or 2 * self.spark.sparkContext.defaultParallelism
        return split(self.ids(top), among, parts, most=most)

    def read(self, text: str, conditions: Sequence[str] | None = None, *, begin: str = "") -> DataFrame:
        """The rows of a statement: by one task for each of the conditions, or by a single one without any.

        Each read is a transaction, which begins with the check of its server and then `begin`.
        """
        predicates: Any = None if conditions is None else list(conditions) or ["false"]
        return self.spark.read.jdbc(
            self._url(), f"({text}) q", predicates=predicates, properties=self._properties(begin)
        )

    def _url(self) -> str:
        """The database, with settings of the driver: among Spark's properties their names would lose their capitals.

        Binary from the first row on, or bodies, times and arrays would be written and parsed as text.
        """
        return f"{self._settings.source.url}&prepareThreshold=-1&tcpKeepAlive=true"

    def _properties(self, begin: str = "") -> dict[str, str]:
        source, first = self._settings.source, ";\n".join(filter(None, (*self.begin(), begin)))
        return {
            "driver": DRIVER,
            "user": source.user,
            "password": source.password,
            "fetchsize": str(self._settings.fetch_size),
            # Spark runs it in the transaction of each read.
            "sessionInitStatement": first,
        }


def _answer(connection: Any, text: str, *values: str | int) -> list[dict[str, Any]]:
    prepared = connection.prepareStatement(text)
    for place, value in enumerate(values, 1):
        (prepared.setString if isinstance(value, str) else prepared.setLong)(place, value)
    answer = prepared.executeQuery()
    names = answer.getMetaData()
    columns = [names.getColumnLabel(n + 1) for n in range(names.getColumnCount())]
    rows = []
    while answer.next():
        rows.append({column: answer.getObject(column) for column in columns})
    return rows


def _cluster(server: Mapping[str, Any]) -> Cluster:
    return Cluster(server["system_identifier"], server["timeline"], server["database"])


def query(table: str, window: Window) -> str:
    """All of a window's rows of a table, as SQL."""
    return f"{statement(SQL, f'{table}_columns')}\nWHERE {_limits(window)}"


def few(table: str, window: Window, most: int) -> str:
    """Up to so many of a window's rows of a table of the warehouse, as SQL."""
    return statement(SQL, f"few_{table}", rows=query(SOURCES[table], window), top=window.top, most=most)


def new_messages(ids: Ids, held: Sequence[Ids], window: Window) -> str:
    """A window's messages of a range of ids, with their publications and checks, as SQL; `held` are all partitions."""
    return statement(
        SQL,
        "new_messages",
        messages=query("message", window),
        lower=ids.lower,
        upper=ids.upper,
        partition=max(each.lower for each in held if each.lower <= ids.lower),
        partitions=", ".join(f"({each.lower})" for each in held),
        below=_limits(replace(window, lo=0), elsewhere="is_foreign"),
    )


def _limits(window: Window, *, elsewhere: str = "from_elsewhere") -> str:
    """Return the condition that a row of `m` is of the window's transactions; `elsewhere`: that of restored rows."""
    limits = statement(SQL, "in_window", lo=window.lo, hi=window.hi)
    if not window.restored:
        return limits
    return f"({limits} OR {statement(SQL, elsewhere, next=window.next, foreign=window.foreign)})"


def part(ids: Ids, window: Window, condition: str = "") -> str:
    """The condition of one of the parallel reads: its range of ids, and the statement `condition`."""
    within = ids.hold("id")
    if not condition:
        return within
    values = {"lo": window.lo, "hi": window.hi, "lower": ids.lower, "upper": ids.upper}
    return f"{within} AND {statement(SQL, condition, **values)}"


def split(existing: Sequence[Ids], among: Ids, parts: int, *, most: int = 0) -> list[Ids]:
    """Divide the ids that exist into about `parts` ranges of the same length, none across two partitions.

    With `most`, the longest that a range may be, there are more of them where it takes that.
    """
    inside = [ids.cut(among) for ids in existing if ids.meets(among)]
    total = sum(ids.upper - ids.lower for ids in inside)
    step = max(LEAST_RANGE, -(-total // max(parts, 1)))
    step = min(step, most or step)
    return [
        Ids(lower, min(lower + step, ids.upper))
        for ids in inside
        for lower in range(ids.lower, ids.upper, step)
    ]
