"""What software does with a schema of another version; processes that run: `tests/faults/test_rolling_upgrade.py`."""

from __future__ import annotations

import pytest

from outbox_migrations import api
from outbox_relay.database import schema
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import connect
from tests.support.servers import MakeDatabase


def test_software_that_is_newer_than_the_schema_does_not_start_and_names_the_repair(
    make_database: MakeDatabase, bootstrap_servers: str
) -> None:
    old = make_database(migrated=False)
    api.upgrade(old, "0001")
    for command in (["relay", "run"], ["checker", "run"], ["status"]):
        ran = outbox(*command, OUTBOX_DSN=old, OUTBOX_BOOTSTRAP_SERVERS=bootstrap_servers)
        assert ran.code == 1, command
        assert f"has the outbox schema 0001, this version needs {schema.REVISION}" in ran.err
        assert "run: outbox db upgrade" in ran.err


@pytest.mark.feature("H-22")
def test_a_newer_schema_states_which_software_works_with_it(database: str) -> None:
    with connect(database) as conn:
        conn.execute("UPDATE outbox.schema_version SET version_num = '9999'")
        assert schema.require_current(conn) == ("9999", "0001")
        ran = succeed("db", "upgrade", "--json", OUTBOX_DSN=database)
        assert (ran.json["from"], ran.json["to"]) == ("9999", "9999")
        found = outbox("db", "check", "--json", OUTBOX_DSN=database).json["checks"]
        [check] = [each for each in found if each["name"] == "schema"]
        assert check["level"] == "warning"
        assert "revision 9999, newer than the" in check["found"]
        conn.execute("UPDATE outbox.schema_version SET oldest_software = '9999'")
        with pytest.raises(schema.SchemaError, match="works with 9999 or newer") as raised:
            schema.require_current(conn)
        assert raised.value.is_newer
        with pytest.raises(api.UnknownRevisionError):
            api.upgrade(database)
        assert outbox("db", "upgrade", OUTBOX_DSN=database).code == 1
        assert outbox("db", "check", OUTBOX_DSN=database).code == 1


def test_a_newer_schema_that_states_nothing_admits_no_older_software(database: str) -> None:
    with connect(database) as conn:
        conn.execute("ALTER TABLE outbox.schema_version DROP COLUMN oldest_software")
        schema.require_current(conn)
        conn.execute("UPDATE outbox.schema_version SET version_num = '9999'")
        with pytest.raises(schema.SchemaError, match="works with 9999 or newer"):
            schema.require_current(conn)
