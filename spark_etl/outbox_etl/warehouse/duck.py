"""DuckDB as the reader of a warehouse's Parquet files on this machine: what Spark would need a job for takes less.

It is trusted only with files of a warehouse that have the checksums that lie next to them. Whatever it cannot do raises
`UnreadableError`: Spark then reads the same files, and reports what is wrong with them.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from outbox_etl.statements import statement
from outbox_etl.warehouse.files import ParquetFiles, is_sound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from outbox_etl.warehouse.tables import Table

SQL = "duck.sql"
MEMORY = "1GiB"
"""What a query takes before it goes on with files of its own, in a given folder or the machine's for such files."""
TYPES = {"bigint": "BIGINT", "int": "INTEGER", "string": "VARCHAR", "binary": "BLOB", "double": "DOUBLE",
         "timestamp": "TIMESTAMPTZ", "date": "DATE", "array<string>": "VARCHAR[]",
         "map<string,string>": "MAP(VARCHAR, VARCHAR)"}  # fmt: skip
"""DuckDB's names of the types; a view has the columns that are of one of these."""
MACROS = (
    "CREATE MACRO unix_micros(moment) AS epoch_us(moment)",
    "CREATE MACRO raise_error(reason) AS error(reason)",
)
"""Functions of Spark that DuckDB has under another name."""
NOT_PLAIN = frozenset("*?[{")
"""What makes a path a pattern for DuckDB, or could be taken for a place in a statement."""


class UnreadableError(Exception):
    """DuckDB cannot read these files; the text is reported, and shows no value."""


def is_there() -> bool:
    """Whether its package is installed."""
    return importlib.util.find_spec("duckdb") is not None


def runs_here(spark: SparkSession) -> bool:
    """Whether tasks run in the driver, in UTC: a user's own time zone is Spark's, DuckDB has days of UTC."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    return str(spark.sparkContext.master).startswith("local") and zone == "UTC"


def opened(spark: SparkSession, say: Callable[[str], None], what: str) -> Duck | None:
    """A DuckDB with the cores of `local[…]`; None: tasks run elsewhere, or it is not there, or does not start."""
    if not (runs_here(spark) and is_there()):
        return None
    try:
        return Duck(spark.sparkContext.defaultParallelism)
    except Exception as error:  # noqa: BLE001  (what Spark can do shall not fail because of it)
        say(f"{what} by Spark: {type(error).__name__}")
        return None


class Duck:
    """A DuckDB in memory, with the tables of a warehouse as views."""

    def __init__(self, threads: int, disk: str | None = None) -> None:
        import duckdb  # noqa: PLC0415

        self._sound: set[str] = set()
        self._threads = threads
        self._spill = tempfile.TemporaryDirectory(prefix="outbox-etl-", dir=disk, ignore_cleanup_errors=True)
        config: dict[str, str | bool | int | float | list[str]] = {
            "threads": threads,
            "memory_limit": MEMORY,
            "temp_directory": self._spill.name,
            "preserve_insertion_order": False,
            # Nothing is fetched from anywhere.
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        try:
            self._duck = duckdb.connect(config=config)
            for text in ("SET TimeZone = 'UTC'", *MACROS):
                self._duck.execute(text)
        except BaseException:
            self._spill.cleanup()
            raise

    def close(self) -> None:
        """Give back memory and disk; a second time does nothing."""
        try:
            self._duck.close()
        finally:
            self._spill.cleanup()

    def view(self, name: str, table: Table, files: ParquetFiles) -> None:
        """Have the rows of a table's files under a name; an earlier one of that name is replaced.

        Raises:
            UnreadableError: a file is missing or damaged.
        """
        try:
            self.need_sound(files)
            self._duck.execute(statement(SQL, "view", view=name, rows=self._rows(name, table, files)))
        except UnreadableError:
            raise
        except Exception as error:  # noqa: BLE001  (DuckDB's, Arrow's, the disk's: Spark reports what is wrong)
            raise UnreadableError(type(error).__name__) from None

    def ask(self, text: str) -> Any:
        """The rows of a query, as Arrow's table.

        Raises:
            UnreadableError: a file cannot be read, or the query goes beyond what the machine has.
        """
        try:
            return self._rows_of(text)
        except Exception as error:  # noqa: BLE001  (as above)
            raise UnreadableError(type(error).__name__) from None

    def ask_for_at_most(self, text: str, most: int) -> Any:
        """The same, of so many bytes at most.

        Raises:
            UnreadableError: as above, or the rows are larger.
        """
        import pyarrow as pa  # noqa: PLC0415

        batches, size = [], 0
        try:
            with self._duck.sql(text).to_arrow_reader() as rows:
                for batch in rows:
                    batches.append(batch)
                    size += batch.nbytes
                    if size > most:
                        raise UnreadableError(f"the rows have more than {most} bytes")
                return pa.Table.from_batches(batches, rows.schema)
        except UnreadableError:
            raise
        except Exception as error:  # noqa: BLE001  (as above)
            raise UnreadableError(type(error).__name__) from None

    def do(self, text: str) -> None:
        """Run a statement that has no rows."""
        self._duck.execute(text)

    def own(self, name: str, paths: Iterable[str]) -> None:
        """Have the rows of files that this run has written under a name; they have no checksums."""
        rows = statement(SQL, "whole", columns="*", paths=listed(paths))
        self._duck.execute(statement(SQL, "view", view=name, rows=rows))

    def give(self, name: str, rows: Any) -> None:
        """Have the rows of an Arrow table under a name."""
        self._duck.register("given", rows)
        self._duck.execute(statement(SQL, "table", table=name))
        self._duck.unregister("given")

    def save(self, text: str, path: str, batches: Any = None) -> int:
        """Write the rows of a query to a file, and count them; `batches`, a reader of Arrow's, has that name.

        Several threads may do so at a time.

        Raises:
            Exception: the query's, the reader's or the disk's.
        """
        with self._duck.cursor() as duck:
            if batches is not None:
                duck.register("batches", batches)
            [(rows,)] = duck.execute(statement(SQL, "save", rows=text, path=quoted(path))).fetchall()
        return int(rows)

    def mark(self, table: str, files: ParquetFiles, first: int = 0) -> None:
        """Have the deleted rows of files in a table: `pos` in a file, `place` of the file from `first` on."""
        places = ", ".join(f"({quoted(file)}, {place})" for place, file in enumerate(files.marked, first))
        text = statement(SQL, "deleted", table=table, paths=listed(files.deletes), places=places)
        self._duck.execute(text)

    def _rows_of(self, text: str) -> Any:
        return self._duck.sql(text).to_arrow_table()

    def need_sound(self, files: ParquetFiles) -> None:
        """Read these files and compare them with the checksums next to them, unless that was done.

        Raises:
            UnreadableError: one of them is damaged, or has a path that cannot be given to DuckDB.
        """
        new = [path for path in files.paths if path not in self._sound]
        if any(NOT_PLAIN & set(path) for path in [*new, *files.marked]):
            raise UnreadableError("the path of a file has one of the characters * ? [ {")
        with ThreadPoolExecutor(self._threads) as threads:
            if not all(threads.map(is_sound, new)):
                raise UnreadableError("a file does not have its checksums")
        self._sound.update(new)

    def _rows(self, name: str, table: Table, files: ParquetFiles) -> str:
        types = {column.name: TYPES[column.type] for column in table.columns if column.type in TYPES}
        columns = ", ".join(f'"{column}"' for column in types)
        parts = []
        if files.whole:
            parts.append(statement(SQL, "whole", columns=columns, paths=listed(files.whole)))
        if files.marked:
            self.mark(f"deleted_of_{name}", files)
            paths = listed(files.marked.values())
            parts.append(statement(SQL, "marked", columns=columns, view=name, paths=paths))
        if not parts:
            nulls = ", ".join(f'CAST(NULL AS {kind}) AS "{column}"' for column, kind in types.items())
            parts.append(statement(SQL, "nothing", columns=nulls))
        return " UNION ALL ".join(parts)


def listed(paths: Iterable[str]) -> str:
    """Texts as literals, with commas between them."""
    return ", ".join(map(quoted, paths))


def quoted(value: str) -> str:
    """A text as a literal."""
    doubled = value.replace("'", "''")
    return f"'{doubled}'"
