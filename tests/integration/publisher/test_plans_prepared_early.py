"""Plans of a session that began before there was anything: made on empty partitions, kept, and looked at when full.

An application's pool opens its connections at night, and each keeps its plans. An index that fits as well while the
tables are empty would be read from end to end later.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox.operations.ranges import within_range
from outbox.operations.rows import load_rows
from outbox.statements import load
from tests.support.bare_reader import narrow_partitions
from tests.support.plain_inserts import Connection, connect
from tests.support.query_plans import FILL_HALVES, Plan, rows_read

# All in one process: its database takes longer to fill than the statements take.
pytestmark = pytest.mark.xdist_group("plans prepared early")

WIDTH, PARTITIONS = 2_000, 4
ONE = "SELECT id::text, message_id::text FROM outbox.message WHERE state = %s ORDER BY id DESC OFFSET 777 LIMIT 1"
MESSAGE: dict[str, tuple[str, str, list[str]]] = {
    "decide": ("decide.sql", "UNKNOWN", ["COMMITTED", "why"]),
    "join": ("decide.sql", "UNKNOWN", []),
    "read_decision": ("decide.sql", "UNKNOWN", []),
    "lock_order_key_of": ("decide.sql", "UNKNOWN", []),
    "cancel": ("cancel.sql", "COMMITTED", ["why"]),
    "cancel_overdue": ("cancel.sql", "COMMITTED", ["why"]),
    "read_cancelled": ("cancel.sql", "COMMITTED", []),
    "note_remark": ("rocketmq.sql", "UNKNOWN", ["why"]),
    "read_state": ("rocketmq.sql", "UNKNOWN", []),
}
"""Statements about one message, by name: file, the state of the message, and values behind its two ids."""
COLUMNS = ["t", "\\x6b", "\\x62", None, None, None, None, "{}", "{}", "orders", *[None] * 7, "1"]
"""Of a message to send, as send.sql numbers them."""


class Early:
    """A session of an application, whose statements are planned while the tables are empty."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        conn.prepare_threshold = None
        conn.execute("SET plan_cache_mode = force_generic_plan")

    def prepare(self, file: str, name: str, count: int) -> None:
        """Prepare a statement of `count` values, and make its plan."""
        text = within_range(load(file)[name], "1") if file == "decide.sql" else load_rows(file)[name]
        self._conn.execute(f'PREPARE "{name}" AS {text}'.encode())
        marks = ", ".join(["NULL"] * count)
        self._conn.execute(f'EXPLAIN EXECUTE "{name}" ({marks})'.encode())

    def explain(self, name: str, values: list[str | None]) -> Plan:
        """Execute the statement, undo it, and return what happened."""
        marks = ", ".join("NULL" if value is None else f"'{value}'" for value in values)
        with self._conn.transaction(force_rollback=True):
            row = self._conn.execute(
                f'EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE "{name}" ({marks})'.encode()
            ).fetchone()
        assert row is not None
        plan: Plan = row[0][0]["Plan"]
        return plan


@pytest.fixture(scope="module")
def conns(request: pytest.FixtureRequest) -> Iterator[tuple[Connection, Early]]:
    """A connection that fills the tables, and the session that was there before."""
    databases = request.getfixturevalue("_shared_databases")
    dsn = databases.make()
    with connect(dsn) as filling, connect(dsn) as session:
        narrow_partitions(filling, width=WIDTH, count=PARTITIONS)
        # Statistics that come in between would let a statement be planned anew: the worst case is that they do not.
        for (table,) in filling.execute("SELECT name::text FROM outbox.partition").fetchall():
            filling.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        for table in ("topic", "producer_group", "idempotency"):
            filling.execute(f"ALTER TABLE outbox.{table} SET (autovacuum_enabled = off)".encode())
        early = Early(session)
        for name, (file, _, more) in MESSAGE.items():
            early.prepare(file, name, 2 + len(more))
        early.prepare("send.sql", "send_once", 20)
        early.prepare("prepare.sql", "prepare_once", 21)
        early.prepare("groups.sql", "read_registry", 2)
        early.prepare("topics.sql", "read_topics", 1)
        filling.execute(FILL_HALVES, [PARTITIONS * WIDTH - 100])
        filling.execute(
            "INSERT INTO outbox.idempotency (producer_group, key, digest, id, message_id) "
            "SELECT 'orders', 'key-' || i, '', i, gen_random_uuid() FROM generate_series(1, 20000) i"
        )
        filling.execute(
            "INSERT INTO outbox.topic (name, partitions) SELECT 't' || i, 3 FROM generate_series(1, 5000) i"
        )
        filling.execute(
            "INSERT INTO outbox.producer_group (name) SELECT 'g' || i FROM generate_series(1, 2000) i"
        )
        yield filling, early
    databases.drop_made()


@pytest.mark.feature("S-50")
@pytest.mark.plan("outbox/sql/decide.sql", "decide", "join", "read_decision", "lock_order_key_of")
@pytest.mark.plan("outbox/sql/cancel.sql", "cancel", "cancel_overdue", "read_cancelled")
@pytest.mark.plan("outbox/sql/rocketmq.sql", "note_remark", "read_state")
@pytest.mark.parametrize("name", MESSAGE)
def test_a_statement_about_one_message_reads_that_row_alone(
    conns: tuple[Connection, Early], name: str
) -> None:
    filling, early = conns
    _, state, more = MESSAGE[name]
    row = filling.execute(ONE, [state]).fetchone()
    assert row is not None
    plan = early.explain(name, [*row, *more])
    assert rows_read(plan, "message_p") == 1
    assert rows_read(plan, "event_p") <= 1


@pytest.mark.plan("outbox/sql/send.sql", "send_once")
@pytest.mark.plan("outbox/sql/prepare.sql", "prepare_once")
@pytest.mark.parametrize(("name", "more"), [("send_once", []), ("prepare_once", [None])])
@pytest.mark.parametrize("key", ["key-7777", "a new one"])
def test_an_idempotency_key_is_looked_up_by_its_index(
    conns: tuple[Connection, Early], name: str, more: list[str | None], key: str
) -> None:
    plan = conns[1].explain(name, [*COLUMNS, key, "\\x00", *more])
    assert rows_read(plan, "idempotency") == (1 if key == "key-7777" else 0)
    assert rows_read(plan, "message_p") == 0


@pytest.mark.plan("outbox/sql/groups.sql", "read_registry")
@pytest.mark.plan("outbox/sql/topics.sql", "read_topics")
def test_the_registry_is_read_by_name(conns: tuple[Connection, Early]) -> None:
    plan = conns[1].explain("read_registry", ["{t7,t77,unknown}", "g777"])
    assert rows_read(plan, "topic") == 2
    assert rows_read(plan, "producer_group") == 1
    assert rows_read(conns[1].explain("read_topics", ["{t7,t77,t777,unknown}"]), "topic") == 3
