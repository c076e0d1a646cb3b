"""Changes of older messages: what happens to the outbox, and what the warehouse's table is made of then."""

from __future__ import annotations

from datetime import timedelta

from outbox_etl.source.window import Watermark
from outbox_etl.warehouse.iceberg import name_of
from outbox_etl.warehouse.maintain import maintain
from outbox_etl.warehouse.maintain_request import MaintenanceRequest
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.export_runs import Exports
from tests.support.lost_locks import BREAK_LOCKS
from tests.support.message_streams import Stream
from tests.support.plain_inserts import connect, insert

HISTORY = name_of(MESSAGE_HISTORY)
NOTHING_OLD = MaintenanceRequest(keep=timedelta(0), newest=1)


def files(exports: Exports, content: int) -> set[str]:
    """Files of message_history: of rows (0), or with marks of deleted rows (1)."""
    rows = exports.spark.sql(f"SELECT file_path FROM {HISTORY}.files WHERE content = {content}").collect()
    return {row["file_path"] for row in rows}


def branches(exports: Exports) -> int:
    """The branches of message_history, without its own."""
    return exports.spark.sql(f"SELECT * FROM {HISTORY}.refs WHERE name <> 'main'").count()


def watermarks(exports: Exports) -> list[int]:
    """The watermarks that readers have seen, in the order of the commits."""
    rows = exports.spark.sql(
        f"SELECT s.summary FROM {HISTORY}.history h JOIN {HISTORY}.snapshots s USING (snapshot_id) "
        "ORDER BY h.made_current_at"
    ).collect()
    return [mark.hi for row in rows if (mark := Watermark.of(row["summary"]))]


def decided_late(stream: Stream) -> None:
    """Decisions, checks of what stays undecided, and publications of what was committed before."""
    stream.check()
    for _ in range(3):
        stream.decide()
    stream.send()
    stream.publish()


def first_window(exports: Exports, stream: Stream) -> None:
    """A window of messages, some undecided, and then a transaction that ends after it with ids below the highest."""
    for _ in range(6):
        stream.half()
        stream.send()
    stream.decide()
    stream.publish()
    with connect(stream.dsn) as early, connect(stream.dsn) as late:
        early.execute("BEGIN")
        insert(early, "t", "k", b"{}")
        late.execute("BEGIN")
        for state in ("UNKNOWN", "COMMITTED"):
            insert(late, "t", "k", b"{}", state=state, producer_group="g")
        insert(early, "t", "k", b"{}")
        early.execute("COMMIT")
        exports.run()
        late.execute("COMMIT")


def overtake(stream: Stream, exports: Exports) -> int:
    """Let a later run come, with newer states of the same messages, as if the lock were lost; answer its watermark."""
    with connect(stream.dsn) as conn:
        conn.execute(BREAK_LOCKS)
    for _ in range(12):
        stream.decide()
    stream.cancel()
    stream.publish()
    exports.run()
    mark = exports.target.watermark()
    assert mark
    return mark.hi


def tend(exports: Exports, request: MaintenanceRequest) -> None:
    """Maintain the warehouse."""
    maintain(exports.spark, exports.settings, exports.target, request, exports.said.append)
