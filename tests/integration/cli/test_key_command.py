"""`outbox key`: lists keys without their bytes, destroys them after a question, renews them and wraps them again."""

from __future__ import annotations

import base64

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.codecs.encryption import Encryption, Keys, MasterKeys
from outbox.codecs.keys import _SQL as SQL
from outbox.drivers import psycopg_sync
from tests.support.encrypted_bodies import MASTER, ROW, by_key, encryption, records
from tests.support.outbox_command import outbox, outbox_reading, succeed
from tests.support.plain_inserts import Connection, connect
from tests.support.query_plans import Prepared, nodes, rows_read

pytestmark = pytest.mark.feature("H-25")
NEW = bytes(32)
NEWEST = f"m2:{base64.b64encode(NEW).decode()}"
LINES = f"{NEWEST}\nm1:{base64.b64encode(MASTER).decode()}"


def send(dsn: str, *keys: str) -> None:
    with psycopg.connect(dsn) as conn:
        for key in keys:
            Outbox(codecs={"customers": encryption()}).send(conn, Message("customers", key, f"of {key}"))


def test_keys_are_destroyed_after_a_question_and_listed_without_bytes(
    database: str, conn: Connection
) -> None:
    given = {"OUTBOX_DSN": database}
    send(database, "1", "2", "1")
    listed = succeed("key", "ls", "--json", **given).json
    assert {one["subject"] for one in listed} == {"customer/1", "customer/2"}
    assert not any("wrapped" in name for one in listed for name in one)
    declined = outbox_reading(b"n\n", "key", "destroy", "customer/1", **given)
    assert declined.code == 1
    assert "destroy 1 key of customer/1?" in declined.err
    refused = outbox("key", "destroy", "customer/1", "--json", **given)
    assert (refused.code, "give --yes as well" in refused.err) == (2, True)
    assert len(succeed("key", "ls", "--subject", "customer/1", "--json", **given).json) == 1
    done = outbox_reading(b"y\n", "key", "destroy", "customer/1", **given)
    assert done.code == 0
    assert "destroyed 1 key of customer/1" in done.out
    assert "cache_seconds" in done.err
    assert "has no key" in succeed("key", "destroy", "customer/1", **given).out
    assert [one["state"] for one in succeed("key", "ls", "--json", **given).json].count("destroyed") == 1
    row = conn.execute(
        "SELECT subject, wrapped, master_id FROM outbox.subject_key WHERE wrapped IS NULL"
    ).fetchone()
    assert row == (None, None, None)
    assert outbox("key", "destroy", "x" * 256, **given).code == 2


def test_a_renewed_key_still_reads_what_it_encrypted(database: str, conn: Connection) -> None:
    given = {"OUTBOX_DSN": database}
    send(database, "1")
    (retired,) = succeed("key", "renew", "customer/1", "--json", **given).json["retired"]
    send(database, "1")
    found = records(conn.execute(ROW).fetchall())
    assert [each.headers["encryption-key-id"] == retired["id"] for each in found] == [True, False]
    with psycopg.connect(database) as reader:
        assert [psycopg_sync.run(reader, encryption().decode(each, each.body)) for each in found] == [
            b"of 1"
        ] * 2
    assert "has no current key" in succeed("key", "renew", "customer/9", **given).out
    assert len(succeed("key", "destroy", "customer/1", "--yes", "--json", **given).json["destroyed"]) == 2


def test_keys_are_wrapped_again_and_destroyed_ones_stay_destroyed(database: str, conn: Connection) -> None:
    given = {"OUTBOX_DSN": database, "MASTERS": LINES}
    send(database, *map(str, range(5)))
    succeed("key", "destroy", "customer/0", "--yes", **given)
    command = ("key", "rewrap", "--master-key", "env:MASTERS")
    missing = outbox(*command, OUTBOX_DSN=database, MASTERS=NEWEST)
    assert missing.code == 1
    assert "master key 'm1' is not configured; configured: m2" in missing.err
    assert "0 were wrapped again" in missing.err
    assert succeed(*command, "--json", **given).json == {
        "master_key": "m2",
        "rewrapped": 4,
        "keys_by_master_key": {"m2": 4},
    }
    assert "wrapped 0 keys again" in succeed(*command, **given).out
    codec = Encryption(Keys(MasterKeys({"m2": NEW})), by_key)
    with psycopg.connect(database) as reader:
        for each in records(conn.execute(ROW).fetchall())[1:]:
            assert psycopg_sync.run(reader, codec.decode(each, each.body)).startswith(b"of ")
    wrong = outbox("key", "rewrap", "--master-key", NEWEST, **given)
    assert (wrong.code, "neither file:PATH nor env:NAME" in wrong.err) == (2, True)
    assert NEWEST[3:] not in wrong.err


def test_a_key_destroyed_while_it_is_rewrapped_is_not_brought_back(database: str, conn: Connection) -> None:
    """Between the page that a rewrap reads and its update, the key is destroyed."""
    from outbox_relay.operations import subject_keys

    send(database, "1", "2")

    class Destroys(MasterKeys):
        def unwrap(self, master_id: str, wrapped: bytes, context: bytes) -> bytes:
            conn.execute("SELECT outbox.destroy_keys('customer/1')")
            return super().unwrap(master_id, wrapped, context)

    with connect(database) as own:
        assert subject_keys.rewrap(own, Destroys({"m2": NEW, "m1": MASTER})) == 1
    states = conn.execute("SELECT master_id, wrapped IS NULL FROM outbox.subject_key ORDER BY 2").fetchall()
    assert states == [("m2", False), (None, True)]


@pytest.mark.plan("outbox/sql/keys.sql", "current", "add", "find")
def test_statements_of_keys_read_one_row_of_a_full_table(database: str, conn: Connection) -> None:
    number = "00000000-0000-0000-0000-000000000001"
    asked = {
        "current": (("text",), ("customer/7",)),
        "add": (("uuid", "text", "bytea", "text"), (number, "customer/7", b"w", "m")),
        "find": (("uuid",), (number,)),
    }
    prepared = {}
    for name, (types, values) in asked.items():
        own = psycopg.connect(database, autocommit=True)
        own.execute("SET plan_cache_mode = force_generic_plan")
        text = SQL[name]
        for place in range(len(types), 0, -1):
            text = text.replace(f"${place}", f"%(v{place})s")
        prepared[name] = own, Prepared(own, text, {f"v{place}": kind for place, kind in enumerate(types, 1)})
        own.execute("BEGIN")
        prepared[name][1].run({f"v{place}": value for place, value in enumerate(values, 1)})
        own.execute("ROLLBACK")
    conn.execute(
        "INSERT INTO outbox.subject_key (id, subject, wrapped, master_id) "
        "SELECT gen_random_uuid(), 'customer/' || i, 'w', 'm' FROM generate_series(1, 20000) i"
    )
    for name, (_, values) in asked.items():
        own, statement = prepared[name]
        plan = statement.explain({f"v{place}": value for place, value in enumerate(values, 1)})
        own.close()
        assert rows_read(plan, "subject_key") <= 1, name
        assert not [node for node in nodes(plan) if node["Node Type"] == "Seq Scan"], name
