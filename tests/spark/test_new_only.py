"""A window that did nothing to older messages reads none of them; whatever did something is merged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outbox_etl.export import WindowExport
from tests.support.export_runs import Exports, KilledError
from tests.support.message_streams import Stream, differences
from tests.support.plain_inserts import connect
from tests.support.spark_marks import MARKS, first_in_gate

pytestmark = MARKS


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows whenever older messages are asked for."""
    asked, kept = list[int](), WindowExport._changes

    def changes(self: WindowExport, *given: Any, **options: Any) -> Any:
        asked.append(1)
        return kept(self, *given, **options)

    monkeypatch.setattr(WindowExport, "_changes", changes)
    return asked


@pytest.mark.parametrize("form", first_in_gate("iceberg", "parquet"))
def test_a_window_of_new_messages_asks_for_no_older_one(
    stream: Stream, make_exports: Callable[..., Exports], asked: list[int], form: str
) -> None:
    exports = make_exports(stream.dsn, format=form)
    for _ in range(3):
        stream.send()
        for _ in range(5):  # (each time at least one)
            stream.publish()
        exports.run()
    assert not asked
    assert not differences(exports.tables(), stream.truth())
    before = exports.target.state().evidence()
    stream.conn.execute("CREATE TABLE public.elsewhere AS SELECT 1 AS one")  # (transactions go on)
    exports.run()
    assert not asked
    assert exports.target.state().evidence() == before, "a run that found nothing commits nothing"
    stream.send()
    exports.run()
    assert not differences(exports.tables(), stream.truth())


def test_half_messages_of_a_window_ask_for_no_older_one(
    stream: Stream, make_exports: Callable[..., Exports], asked: list[int]
) -> None:
    exports = make_exports(stream.dsn)
    exports.run()
    for _ in range(3):
        stream.half()
        stream.check()
        for _ in range(2):  # (both)
            stream.decide()
        exports.run()
    assert not asked
    assert not differences(exports.tables(), stream.truth())


@pytest.mark.parametrize("what", ["check", "ROLLED_BACK"])
def test_what_happened_to_the_newest_message_is_merged(
    stream: Stream, make_exports: Callable[..., Exports], asked: list[int], what: str
) -> None:
    exports = make_exports(stream.dsn)
    exports.run()
    stream.half()
    exports.run()
    assert not asked
    newest = "id = (SELECT last_value FROM outbox.position)"
    with connect(stream.dsn) as conn:
        if what == "check":
            conn.execute(
                "INSERT INTO outbox.event (id, message_id, kind, answer, actor) "
                f"SELECT id, message_id, 'check', 'UNKNOWN', 'c' FROM outbox.message WHERE {newest}".encode()
            )
        else:
            conn.execute(
                f"UPDATE outbox.message SET state = '{what}', remark = 'why' WHERE {newest}".encode()
            )
    exports.run()
    assert len(asked) == 1
    assert not differences(exports.tables(), stream.truth())


@pytest.mark.parametrize(
    "happens", first_in_gate("publish", "publish_again", "decide", "check", "end_writer")
)
def test_what_happened_to_an_older_message_is_merged(
    stream: Stream, make_exports: Callable[..., Exports], asked: list[int], happens: str
) -> None:
    exports = make_exports(stream.dsn)
    stream.send()
    stream.publish()
    stream.half()
    stream.open_writer()
    if happens == "publish":
        stream.send()
    exports.run()
    if happens != "end_writer":
        stream.end_writer()
        exports.run()
    asked.clear()
    getattr(stream, happens)()
    stream.send()
    exports.run()
    assert asked
    assert not differences(exports.tables(), stream.truth())


def test_what_a_dead_backfill_has_left_is_merged(
    stream: Stream, make_exports: Callable[..., Exports], asked: list[int]
) -> None:
    exports = make_exports(stream.dsn)
    stream.send()
    for _ in range(5):
        stream.publish()
    exports.run()
    exports.spark.sql(
        "UPDATE outbox.outbox.message_history SET published_at = NULL, partition = NULL, offset = NULL, "
        "status = 'COMMITTED'"
    )
    assert differences(exports.tables(), stream.truth())
    with pytest.raises(KilledError):
        exports.backfill(die_at=2)
    asked.clear()
    stream.send()
    exports.run()
    assert asked
    assert not differences(exports.tables(), stream.truth())
