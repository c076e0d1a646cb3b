"""Plans of what operators ask of holds: it reads what it concerns, however many keys are held.

Prepared on empty tables in the relay's own session, and looked at when they are full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import pytest

from outbox_relay.operations.dead_letters import STATEMENTS as DEAD_LETTERS
from outbox_relay.operations.holds import ALL, read_statement
from outbox_relay.operations.holds import STATEMENTS as HOLDS
from tests.support.much_held import EACH, KEYS, fill, session_of_a_relay, watch
from tests.support.plain_inserts import Connection
from tests.support.query_plans import Prepared, removed, rows_read


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """A relay's session; statistics stay as they are."""
    with session_of_a_relay(database) as conn:
        yield conn


@pytest.mark.plan("relay/outbox_relay/operations/dead_letters.sql", "next_to_give_up")
@pytest.mark.parametrize("waiting", ["expired", "failed"])
def test_what_is_to_be_given_up_is_found_without_what_is_held(conn: Connection, waiting: str) -> None:
    values = {"waiting": waiting, **asdict(ALL), "in_doubt": False, "after": 0}
    types = {"waiting": "text", "topic": "text", "error": "text", "older": "float8"}
    types |= {"in_doubt": "boolean", "after": "bigint"}
    watched = watch(conn, DEAD_LETTERS["next_to_give_up"], types, values)
    conn.execute(
        "UPDATE outbox.waiting SET reason = 'expired', parked = NULL, place = NULL WHERE id % 100 = 1"
        if waiting == "expired"
        else "UPDATE outbox.waiting SET reason = 'failed' WHERE id % 100 = 1"
    )
    assert rows_read(watched.explain(values), "waiting") == KEYS * EACH // 100


@pytest.mark.plan("relay/outbox_relay/operations/dead_letters.sql", "request_drain")
def test_a_request_reads_one_key(conn: Connection) -> None:
    watched = watch(conn, DEAD_LETTERS["request_drain"], {"numbers": "bigint[]"}, {"numbers": [1]})
    row = conn.execute("SELECT parked FROM outbox.waiting WHERE id = 502").fetchone()
    assert row is not None
    plan = watched.explain({"numbers": [row[0]]})
    assert plan["Actual Rows"] == 1
    assert rows_read(plan, "parked_key") == 1


ANALYZED = pytest.mark.parametrize("analyzed", ["nothing", "the topic", "all"])


def hold_topic_and_keys(conn: Connection, analyzed: str) -> None:
    """Let 50,000 messages of a topic wait, and then thousands of keys fail."""
    conn.execute("RESET ALL")  # the session of a command, or of the figures
    conn.execute(
        "INSERT INTO outbox.parked_key (number, lane, topic, head, error) VALUES (-100001, 4, 'held', 100001, 'X')"
    )
    conn.execute(
        "INSERT INTO outbox.waiting (id, message_id, reason, parked, place) "
        "SELECT i, gen_random_uuid(), 'parked', -100001, i FROM generate_series(100001, 150000) i"
    )
    if analyzed == "the topic":
        conn.execute("ANALYZE outbox.waiting, outbox.parked_key")
    fill(conn)
    if analyzed == "all":
        conn.execute("ANALYZE outbox.waiting, outbox.parked_key")


@ANALYZED
@pytest.mark.parametrize("most", [None, 2_000, 100])
def test_a_list_of_holds_reads_what_waits_once(conn: Connection, analyzed: str, most: int | None) -> None:
    hold_topic_and_keys(conn, analyzed)
    statement = read_statement(keys="true", topics="true").as_string(conn)
    types = {"topic": "text", "error": "text", "older": "float8", "most": "bigint"}
    values = {**asdict(ALL), "most": most}
    found = Prepared(conn, statement, types)
    rows = found.run(values)
    assert sum(row[-1] for row in rows) == 50_000 + (len(rows) - 1) * (EACH - 1)
    plan = found.explain(values)
    assert rows_read(plan, "parked_key") <= 2 * (KEYS + 1)
    assert rows_read(plan, "waiting") <= 2 * (KEYS * EACH + 50_000) + KEYS, (
        "for the heads, and for what waits"
    )
    assert removed(plan) <= 2 * KEYS, "holds are not compared with each other"


@ANALYZED
def test_groups_of_holds_read_what_waits_once(conn: Connection, analyzed: str) -> None:
    """Also where statistics are of a topic of which many messages wait, and thousands of keys have failed since."""
    hold_topic_and_keys(conn, analyzed)
    statement = read_statement("groups", keys="true", topics="true").as_string(conn)
    plan = Prepared(conn, statement, {}).explain({})
    assert rows_read(plan, "parked_key") <= 2 * (KEYS + 1)
    assert rows_read(plan, "waiting") <= KEYS * EACH + 50_000 + KEYS, "once; averages of loops are rounded"
    assert rows_read(plan, "message_p") == 0


def test_the_hold_of_one_message_is_read_by_its_number(conn: Connection) -> None:
    values = {**asdict(ALL), "most": 1, "number": 1}
    types = {"topic": "text", "error": "text", "older": "float8", "most": "bigint"}
    statement = read_statement(keys=HOLDS["of_key"]).as_string(conn)
    watched = watch(conn, statement, types | {"number": "bigint"}, values)
    row = conn.execute("SELECT parked FROM outbox.waiting WHERE id = 502").fetchone()
    assert row is not None
    plan = watched.explain({**values, "number": row[0]})
    assert plan["Actual Rows"] == 1
    assert rows_read(plan, "parked_key") == 1
    assert rows_read(plan, "waiting") <= EACH + 1, "those behind it are counted"
