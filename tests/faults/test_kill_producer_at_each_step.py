"""A producer killed at any step leaves nothing in doubt: who is asked knows, and Kafka shows what was paid, no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from outbox import Outbox
from outbox.checking.scan import WHOLE_PAUSE
from tests.support.application_process import Child
from tests.support.checker_process import CheckerProcess
from tests.support.dying_producers import TABLES
from tests.support.kafka_records import message_ids, read_topic
from tests.support.plain_inserts import Connection, connect, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase
from tests.support.waiting import wait_until

SUPPORT = Path(__file__).parents[1] / "support"
QUERY = "SELECT EXISTS (SELECT FROM payment WHERE biz_id = %(biz_id)s AND state = 'paid')"
HERE_MODELS = ("verbs", "listener", "block")
"""Business rows beside the outbox; `outbox checker run` asks by a query."""
ELSEWHERE_MODELS = ("listener_elsewhere", "transaction_elsewhere")
"""Business rows in another database; a second process of the producer's group answers."""
CHECK_AFTER, CHECK_INTERVAL = 0.5, 0.5
BOUND = timedelta(seconds=CHECK_AFTER + 2.0 + 2 * CHECK_INTERVAL + WHOLE_PAUSE + 5.0)
"""First check, the longest local transaction, two intervals more; the pause between two walks over all of a group,
should the short one have missed a half message that was committed late; and time for a busy machine."""

UNDECIDED = "SELECT count(*) FROM outbox.message WHERE state NOT IN ('COMMITTED', 'ROLLED_BACK')"
FATES = """
    SELECT biz_id, message_id::text, state, decided_at - born_at FROM outbox.message ORDER BY id
"""


def register(conn: Connection) -> None:
    """Groups that are asked soon and often; half of them by the operator's query."""
    with conn.transaction():
        for model in (*HERE_MODELS, *ELSEWHERE_MODELS):
            Outbox(model).register_group(
                conn,
                model,
                message_type="TRANSACTION",
                check_after=CHECK_AFTER,
                check_interval=CHECK_INTERVAL,
                max_check_interval=CHECK_INTERVAL,
            )
        conn.execute(
            "UPDATE outbox.producer_group SET callback = %s WHERE name = ANY (%s)",
            [json.dumps({"kind": "sql", "query": QUERY}), list(HERE_MODELS)],
        )


def kill_everywhere(database: str, elsewhere: str, topic: str) -> dict[str, str]:
    """Run all models side by side; answer how each process ended, by biz_id."""

    def run(model: str) -> list[str]:
        with Child(SUPPORT / "dying_producers.py", model, database, elsewhere, topic) as child:
            code = child.wait(120)
            assert code == 0, child.output
            return child.output.splitlines()

    models = (*HERE_MODELS, *ELSEWHERE_MODELS)
    with ThreadPoolExecutor(len(models)) as pool:
        lines = [line for told in pool.map(run, models) for line in told]
    return dict(line.split(" ", 1) for line in lines)


@pytest.fixture
def answering(database: str, make_database: MakeDatabase) -> Iterator[str]:
    """Somebody to ask for every group; the database of those whose rows are elsewhere."""
    elsewhere = make_database(migrated=False)
    with connect(database) as conn, connect(elsewhere) as other:
        register(conn)
        conn.execute(TABLES)
        other.execute(TABLES)
    with ExitStack() as stack:
        stack.enter_context(CheckerProcess(database))
        for model in ELSEWHERE_MODELS:
            child = Child(SUPPORT / "answering_producer.py", model, database, elsewhere)
            stack.enter_context(child)
            assert child.next_line() == "answering"
        yield elsewhere


@pytest.mark.feature("S-02", "S-20", "S-44", "S-73")
def test_a_producer_may_die_at_any_step_of_any_model(
    database: str, answering: str, bootstrap_servers: str, topic: str
) -> None:
    with (
        connect(database) as conn,
        connect(answering) as other,
        RelayProcess(database, bootstrap_servers) as relay,
    ):
        ends = kill_everywhere(database, answering, topic)
        wait_until(lambda: conn.execute(UNDECIDED).fetchone() == (0,), "all are decided", seconds=60)
        wait_published(conn)
        relay.stop()
        paid = {
            biz_id
            for where in (conn, other)
            for (biz_id,) in where.execute("SELECT biz_id FROM payment WHERE state = 'paid'")
        }
        begun = {biz_id for (biz_id,) in conn.execute("SELECT biz_id FROM payment")}
        fates = conn.execute(FATES).fetchall()
    state = {biz_id: fate for biz_id, _, fate, _ in fates}
    assert {biz_id for biz_id, fate in state.items() if fate == "COMMITTED"} == paid
    assert begun - paid <= state.keys(), "a first write without its half message"
    assert {biz_id: ends[biz_id] for biz_id, _, _, after in fates if after > BOUND} == {}
    records = read_topic(bootstrap_servers, topic)
    assert {record.value.decode() for record in records if record.value} == paid
    assert set(message_ids(records).values()) == {1}
    came_through = {biz_id for biz_id, end in ends.items() if end == "came through"}
    assert len(came_through) == len(HERE_MODELS) + len(ELSEWHERE_MODELS)
    assert came_through < paid < ends.keys(), "killed after the COMMIT, and before it"
    by_check = {biz_id for biz_id in paid if ends[biz_id] != "came through" and "elsewhere" in biz_id}
    assert by_check, "no process died between its local commit and its confirm"
