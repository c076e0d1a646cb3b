"""What a warehouse must be able to do, whatever its tables are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from outbox_etl.source.reader import Ids, lies_among
from outbox_etl.source.window import Watermark
from outbox_etl.warehouse.evidence import State
from outbox_etl.warehouse.files import Between, ParquetFiles
from outbox_etl.warehouse.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Merging:
    """How changes are merged."""

    window_hi: int
    ids: Ids
    """The ids that the changes are of."""
    whole: bool = False
    """Whether they are of all that PostgreSQL holds: nearly all rows change."""
    lost: Sequence[Ids] | None = None
    """Messages of these ids that the changes do not mention were lost in a fail-over: their status becomes LOST.
    None: there was no fail-over."""
    rows: int = 0
    """How many changes there are; 0: unknown."""
    size: int = 0
    """About how many bytes they have."""
    say: Callable[[str], None] = field(default=lambda _: None, compare=False)
    """Logs who merges them, and why."""

    def is_lost(self, column: str) -> str:
        """The condition that names them, as SQL."""
        return f"({lies_among(column, self.lost or ())})"


class Unwritten(Protocol):
    """The new messages of a range of ids; a target takes them as Spark's rows, or lets tasks write them as Arrow."""

    ranges: Sequence[Ids]
    """What each task reads."""

    def rows(self, ranges: Sequence[Ids]) -> DataFrame:
        """The messages of these ranges as Spark's rows."""

    def write(
        self, table: Any, properties: Mapping[str, str], since: int, told: Mapping[str, str]
    ) -> tuple[int, Sequence[Ids]]:
        """Commit to an Iceberg table what can be written as Arrow; return the rows, and the ranges that are left.

        The commit has the properties `told` if it leaves none.
        """


class Target(Protocol):
    """A warehouse. Every method that writes is one commit: readers see all of it or nothing."""

    def prepare(self, *tables: Table, origin: Watermark | None = None) -> None:
        """Make the tables that are missing; a new message_history begins with the watermark `origin`.

        Raises:
            TargetError: there is something else under such a name; nothing was changed.
        """

    def watermark(self) -> Watermark | None:
        """Return up to where the warehouse is filled; None: there is no warehouse yet, or nothing in it.

        Raises:
            TargetError: message_history has rows that no export wrote.
        """

    def identity(self) -> str:
        """Name this very warehouse for its whole life, wherever it is; empty: it has no name yet.

        Another one at the same place has another name.
        """

    def state(self) -> State:
        """The core tables as they are now, for certificates.

        Raises:
            TargetError: one of them is gone.
        """

    def read(self, table: Table) -> DataFrame:
        """The rows of a table."""

    def files(self, table: Table, where: Sequence[Between] | None) -> ParquetFiles | None:
        """Find the files that may have rows of one of these ranges, or all; None: only Spark can read them."""

    def top(self) -> int:
        """The highest id that message_history may hold; 0 when it is empty."""

    def replace(self, table: Table, rows: DataFrame, condition: str, *, in_order: bool = False) -> int:
        """Put these rows in the place of those that the condition names; answer how many were written.

        The condition must name whole files, as `window_hi > 7` or a range of days does. Rows that are `in_order` come
        in ranges of the table's order, one range per task: nothing has to be moved for narrow files.

        Raises:
            ConcurrentRunError: another run wrote such rows since this one began.
        """

    def can_put(self, table: Table) -> bool:
        """Whether `put` will most likely write rows of this table: it decides."""

    def put(self, table: Table, rows: Any, where: Sequence[Between] | None) -> bool:
        """Put rows, which are few and Arrow's, in the place of those of these ranges, or of all.

        Returns:
            False: nothing was done; `replace` can.

        Raises:
            ConcurrentRunError: another run wrote such rows since this one began.
        """

    def append(self, messages: Unwritten, ids: Ids, mark: Watermark | None = None) -> int:
        """Add messages of these ids, of which message_history has none; answer how many were written.

        The watermark is part of the commit that completes them.

        Raises:
            ConcurrentRunError: another run wrote such rows since this one began.
        """

    def merge(self, changes: DataFrame, mark: Watermark | None, how: Merging) -> None:
        """Merge changes (see outbox_etl.warehouse.changes) into message_history; the watermark is part of the commit.

        Raises:
            ConcurrentRunError: another run wrote the table since this one began.
        """

    def mark(self, mark: Watermark) -> None:
        """Commit a watermark without rows: after a window without messages, and after a maintenance that expires the
        snapshot that had it.

        Raises:
            ConcurrentRunError: another run wrote the table since this one began.
        """
