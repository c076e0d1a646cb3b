"""Reconcile names what was done to one row of the warehouse, or of PostgreSQL, each to a message of its own.

All rows are verified at once: each deed has to be found beside the others, and nothing else may be.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from outbox_etl.reconcile.findings import Finding
from outbox_etl.reconcile.request import ReconcileResult
from tests.support.recorded_by_hand import MakeWorld, Scene
from tests.support.servers import MakeTopic
from tests.support.spark_marks import MARKS

pytestmark = MARKS


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
    again: ReconcileResult


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
    world.export()
    before = world.reconcile()
    ids = [each.message_id for each in sent]
    victims = {deed: [ids[2 * number]] for number, deed in enumerate(deeds)}
    victims["two offsets swapped"].append(ids[2 * deeds.index("two offsets swapped") + 1])
    for deed, (statement, _) in DEEDS.items():
        victim, *others = victims[deed]
        world.sql(statement.format(id=victim, next=(others or [""])[0]))
    (lost,), (changed,), (unpublished,) = victims[LOST], victims[CHANGED], victims[UNPUBLISHED]
    # As a disk does it, not a program: the guards are no part of this.
    world.conn.execute("SET session_replication_role = replica")
    world.conn.execute("DELETE FROM outbox.message WHERE message_id = %s", [lost])
    world.conn.execute("UPDATE outbox.message SET body = 'x' WHERE message_id = %s", [changed])
    world.conn.execute(
        "DELETE FROM outbox.publication WHERE positions[1] = "
        "(SELECT position FROM outbox.message WHERE message_id = %s)",
        [unpublished],
    )
    after = world.reconcile(everything=True)
    again = world.reconcile()
    found: dict[str, set[str]] = {}
    for each in after.found:
        if each.store == "warehouse":
            found.setdefault(str(each.message_id), set()).add(each.kind)
    in_kafka = [each for each in after.found if each.store == "kafka"]
    return Judged(before, victims, found, in_kafka, after, again)


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
