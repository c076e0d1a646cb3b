"""Reconcile names what was done to one row of the warehouse, or of PostgreSQL, each to a message of its own.

All rows are verified at once: each deed has to be found beside the others, and nothing else may be.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from psycopg.types.json import Jsonb

from outbox_etl.reconcile.findings import Finding
from outbox_etl.reconcile.request import ReconcileResult
from tests.support.recorded_by_hand import MakeWorld, Scene, essence
from tests.support.servers import MakeTopic
from tests.support.spark_marks import MARKS

pytestmark = MARKS


def _headers(*given: str | None) -> str:
    """A statement that gives a row these headers: names and values in turns."""
    listed = ", ".join("NULL" if each is None else f"'{each}'" for each in given)
    return f"UPDATE {{{{history}}}} SET headers = map({listed}) WHERE message_id = '{{id}}'"


POSITION = "(SELECT position FROM {{history}} WHERE message_id = '{id}')"
DEEDS = {
    "a row deleted": ("DELETE FROM {{history}} WHERE message_id = '{id}'", {"missing"}),
    "a row doubled": (
        "INSERT INTO {{history}} SELECT * FROM {{history}} WHERE message_id = '{id}'",
        {"doubled"},
    ),
    "a former state beside it": (
        """INSERT INTO {{history}} BY NAME
           SELECT * EXCEPT (xid), xid + 1000000 AS xid FROM {{history}} WHERE message_id = '{id}'""",
        {"doubled"},
    ),
    "the state of another transaction": (
        "UPDATE {{history}} SET xid = xid + 1000000 WHERE message_id = '{id}'",
        {"altered"},
    ),
    "called lost": ("UPDATE {{history}} SET status = 'LOST' WHERE message_id = '{id}'", {"altered"}),
    "a body changed": ("UPDATE {{history}} SET body = binary('x') WHERE message_id = '{id}'", {"altered"}),
    "an order key changed": (
        "UPDATE {{history}} SET order_key = binary('x') WHERE message_id = '{id}'",
        {"altered"},
    ),
    "an offset changed": (
        "UPDATE {{history}} SET offset = offset + 1 WHERE message_id = '{id}'",
        {"altered"},
    ),
    "two offsets swapped": (
        """UPDATE {{history}} SET offset = CASE message_id WHEN '{id}' THEN offset + 1 ELSE offset - 1 END
           WHERE message_id IN ('{id}', '{next}')""",
        {"altered"},
    ),
    "two bodies swapped": (
        """UPDATE {{history}} SET body = binary(CASE message_id WHEN '{id}' THEN '{next_body}' ELSE '{body}' END)
           WHERE message_id IN ('{id}', '{next}')""",
        {"altered"},
    ),
    "an empty text for none": (
        "UPDATE {{history}} SET transaction_id = '' WHERE message_id = '{id}'",
        {"altered"},
    ),
    "a value in the column beside": (
        "UPDATE {{history}} SET transaction_id = NULL, checker = 'x' WHERE message_id = '{id}'",
        {"altered"},
    ),
    "no headers for none given": (
        "UPDATE {{history}} SET headers = cast(map() AS map<string,string>) WHERE message_id = '{id}'",
        {"altered"},
    ),
    "tags that became index keys": (
        "UPDATE {{history}} SET tags = array(), index_keys = array('a', 'b', 'c') WHERE message_id = '{id}'",
        {"altered"},
    ),
    "the end of a header in the next one": (_headers("a", "1", "b", "x\\u00012"), {"altered"}),
    "a control character for a null header": (_headers("a", "\\u0002"), {"altered"}),
    "a value at another header": (_headers("a", "1", "b", None), {"altered"}),
    "a topic unset": ("UPDATE {{history}} SET topic = NULL WHERE message_id = '{id}'", {"altered"}),
    "a publication's partition unset": (
        f"UPDATE {{{{publications}}}} SET partition = NULL WHERE position = {POSITION}",
        {"missing", "extra", "altered"},
    ),
    "the time of publication unset in both tables": (
        f"""UPDATE {{{{publications}}}} SET published_at = NULL WHERE position = {POSITION};
            UPDATE {{{{history}}}} SET published_at = NULL WHERE message_id = '{{id}}'""",
        {"missing", "extra", "altered"},
    ),
    "the time of publication moved in both tables": (
        f"""UPDATE {{{{publications}}}} SET published_at = published_at + INTERVAL 300 DAYS WHERE position = {POSITION};
            UPDATE {{{{history}}}} SET published_at = published_at + INTERVAL 300 DAYS WHERE message_id = '{{id}}'""",
        {"missing", "extra"},
    ),
    "another owner of a publication": (
        f"UPDATE {{{{publications}}}} SET epoch = 99, batch = 99 WHERE position = {POSITION}",
        {"missing", "extra"},
    ),
    "another body as JSON": (
        "UPDATE {{history}} SET body_json = '0' WHERE message_id = '{id}'",
        {"altered"},
    ),
    "the status of another state": (
        "UPDATE {{history}} SET status = 'ROLLED_BACK' WHERE message_id = '{id}'",
        {"altered"},
    ),
    "a publication deleted": (
        f"DELETE FROM {{{{publications}}}} WHERE position = {POSITION}",
        {"missing", "altered"},
    ),
    "a publication's offset changed": (
        f"UPDATE {{{{publications}}}} SET offset = offset + 1 WHERE position = {POSITION}",
        {"missing", "extra", "altered"},
    ),
    "a publication doubled": (
        f"INSERT INTO {{{{publications}}}} SELECT * FROM {{{{publications}}}} WHERE position = {POSITION}",
        {"doubled"},
    ),
    "an event deleted": ("DELETE FROM {{events}} WHERE message_id = '{id}'", {"missing"}),
    "an event doubled": (
        "INSERT INTO {{events}} SELECT * FROM {{events}} WHERE message_id = '{id}'",
        {"doubled"},
    ),
}
"""What is done by SQL to the warehouse, and how that is called there."""
WITH_NEXT = ("two offsets swapped", "two bodies swapped")
"""Deeds that are done to the message behind, too."""
COLUMNS = {
    "a value in the column beside": ("transaction_id", "x"),
    "tags that became index keys": ("tags", ["a", "b", "c"]),
    "the end of a header in the next one": ("headers", Jsonb({"a": "1\u0001x", "b": "2"})),
    "a control character for a null header": ("headers", Jsonb({"a": None})),
    "a value at another header": ("headers", Jsonb({"a": None, "b": "1"})),
}
"""What such a message has in PostgreSQL."""
LOST = "a message that PostgreSQL lost"
CHANGED = "a body that changed in PostgreSQL"
UNPUBLISHED = "a publication that PostgreSQL lost"
EVENTS = """
    INSERT INTO outbox.event (id, message_id, kind, answer, actor)
    SELECT id, message_id, 'check', 'COMMIT', 'test' FROM outbox.message
"""


@dataclass
class Judged:
    """Who was done what to, and what was found."""

    before: ReconcileResult
    victims: dict[str, list[str]]
    found: dict[str, set[str]]
    """Kinds of findings in the warehouse, by message id."""
    in_kafka: list[Finding]
    after: ReconcileResult
    by_spark: ReconcileResult
    again: ReconcileResult
    left_to_spark: list[str]


@pytest.fixture(scope="module")
def judged(module_worlds: MakeWorld, make_topic: MakeTopic) -> Judged:
    """All deeds done to a warehouse that had been proven."""
    world = module_worlds(format="iceberg")
    scene = Scene(world, make_topic(partitions=1))
    deeds = [*DEEDS, LOST, CHANGED, UNPUBLISHED]
    sent = scene.write(2 * len(deeds))
    for message in sent:  # each in a publication of its own
        scene.publish([message])
    world.conn.execute(EVENTS)
    pairs = {deed: sent[2 * number : 2 * number + 2] for number, deed in enumerate(deeds)}
    victims = {
        deed: [each.message_id for each in pair[: 2 if deed in WITH_NEXT else 1]]
        for deed, pair in pairs.items()
    }
    # As a disk does it, not a program: the guards are no part of this.
    world.conn.execute("SET session_replication_role = replica")
    for deed, (column, value) in COLUMNS.items():
        text = f"UPDATE outbox.message SET {column} = %s WHERE message_id = %s"
        world.conn.execute(text, [value, victims[deed][0]])
    world.export()
    before = world.reconcile()
    for deed, (statements, _) in DEEDS.items():
        first, behind = pairs[deed]
        names = {"id": first.message_id, "next": behind.message_id}
        names |= {"body": first.body, "next_body": behind.body}
        for statement in statements.split(";\n"):
            world.sql(statement.format(**names))
    (lost,), (changed,), (unpublished,) = victims[LOST], victims[CHANGED], victims[UNPUBLISHED]
    world.conn.execute("DELETE FROM outbox.message WHERE message_id = %s", [lost])
    world.conn.execute("UPDATE outbox.message SET body = 'x' WHERE message_id = %s", [changed])
    world.conn.execute(
        "DELETE FROM outbox.publication WHERE positions[1] = "
        "(SELECT position FROM outbox.message WHERE message_id = %s)",
        [unpublished],
    )
    after = world.reconcile(everything=True)
    by_spark = world.reconcile_by_spark(everything=True)
    again = world.reconcile()
    found: dict[str, set[str]] = {}
    for each in after.found:
        if each.store == "warehouse":
            found.setdefault(str(each.message_id), set()).add(each.kind)
    in_kafka = [each for each in after.found if each.store == "kafka"]
    return Judged(before, victims, found, in_kafka, after, by_spark, again, world.left_to_spark())


@pytest.mark.parametrize("deed", DEEDS)
def test_what_happened_to_one_row_of_the_warehouse_is_named(judged: Judged, deed: str) -> None:
    assert [judged.found.get(each) for each in judged.victims[deed]] == [DEEDS[deed][1]] * len(
        judged.victims[deed]
    )


@pytest.mark.parametrize(
    ("deed", "kinds"), [(LOST, {"extra"}), (CHANGED, {"altered"}), (UNPUBLISHED, {"extra"})]
)
def test_what_happened_to_one_row_of_postgresql_is_named(judged: Judged, deed: str, kinds: set[str]) -> None:
    assert [judged.found.get(each) for each in judged.victims[deed]] == [kinds]


def test_what_happened_to_the_warehouse_is_not_said_of_kafka(judged: Judged) -> None:
    assert judged.in_kafka == []


def test_nobody_else_is_named_and_the_proof_is_taken_back(judged: Judged) -> None:
    assert (judged.before.problems, judged.before.certified) == (0, True)
    victims = {message_id for each in judged.victims.values() for message_id in each}
    assert {each.message_id for each in judged.after.found} == victims
    assert judged.after.exit_code == 1
    assert judged.again.exit_code == 1, "a proof that was taken back is asked for again"


def test_duckdb_and_spark_find_the_same(judged: Judged) -> None:
    assert judged.left_to_spark == []
    assert judged.after.sums != judged.by_spark.sums, "each engine has hashes of its own"
    mine, theirs = essence(judged.after), essence(judged.by_spark)
    assert set(mine["found"]) ^ set(theirs["found"]) == set()
    assert mine == theirs
