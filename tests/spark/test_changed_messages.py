"""What becomes of a message that the warehouse knows already comes with the next window, whatever it becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.export_runs import Exports
from tests.support.message_streams import Stream, differences
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.spark_marks import MARKS, first_in_gate
from tests.support.stopped_lanes import set_aside

pytestmark = MARKS
WAYS = (
    ("UNKNOWN", "COMMITTED"),
    ("UNKNOWN", "ROLLED_BACK"),
    ("UNKNOWN", "EXHAUSTED"),
    ("UNKNOWN", "EXHAUSTED", "COMMITTED"),
    ("UNKNOWN", "EXHAUSTED", "ROLLED_BACK"),
    ("COMMITTED", "DEAD"),
    ("COMMITTED", "DEAD", "COMMITTED"),
    ("COMMITTED", "DEAD", "SKIPPED"),
    ("delayed", "CANCELLED"),
    ("delayed", "released"),
)
"""How a message is born, and what it becomes in each of the next windows."""


@pytest.fixture
def stream(database: str) -> Iterator[Stream]:
    """An outbox to which nothing has happened."""
    stream = Stream(database, 1)
    yield stream
    stream.close()


def born(conn: Connection, state: str) -> int:
    if state == "delayed":
        insert(conn, "t", "k", b"{}", deliver_at="2999-01-01")
    else:
        insert(conn, "t", "k", b"{}", state=state, producer_group="g")
    row = conn.execute("SELECT max(id) FROM outbox.message").fetchone()
    assert row is not None
    return int(row[0])


def become(stream: Stream, number: int, state: str) -> None:
    if state == "released":
        stream.release()
    elif state == "DEAD":
        set_aside(stream.conn, number)
    else:
        stream.conn.execute("UPDATE outbox.message SET state = %s WHERE id = %s", [state, number])


@pytest.mark.feature("H-01")
@pytest.mark.parametrize("form", first_in_gate("iceberg", "parquet"))
def test_every_transition_of_a_known_message_comes_with_the_next_window(
    stream: Stream, make_exports: Callable[..., Exports], form: str
) -> None:
    warehouse = make_exports(stream.dsn, format=form)
    numbers = [born(stream.conn, birth) for birth, *_ in WAYS]
    with connect(stream.dsn) as late:
        late.execute("BEGIN")
        insert(late, "t", "k", b"{}")
        insert(late, "t", "k", b"{}", state="UNKNOWN", producer_group="g")
        stream.send()
        warehouse.run()
        late.execute("COMMIT")
    for step in range(2):
        for number, (_, *states) in zip(numbers, WAYS, strict=True):
            for state in states[step : step + 1]:
                become(stream, number, state)
        stream.check()
        stream.publish()
        warehouse.run()
    assert not differences(warehouse.tables(), stream.truth())
