"""A member that runs through a fail-over to a standby that lagged reads again what the standby lacks."""

from __future__ import annotations

import logging
import subprocess
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outbox.inbox import ConsumedMessage, ConsumeResult
from outbox_local.stack.api import Stack
from tests.support.inbox_stage import InboxStage, apply
from tests.support.plain_inserts import connect
from tests.support.publications import value
from tests.support.servers import MakeTopic
from tests.support.standbys import has_replayed, standby
from tests.support.waiting import wait_until

RECEIVING = "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')"
SESSIONS = "SELECT count(*) FROM pg_stat_activity"
STORED = "SELECT coalesce(sum(next_off), 0) FROM outbox.inbox_position"


@pytest.mark.feature("S-92")
@pytest.mark.parametrize("orderly", [True, False], ids=["orderly", "concurrent"])
def test_a_member_reads_again_what_a_promoted_standby_lacks(
    private_stack: Stack,
    private_database: str,
    make_private_topic: MakeTopic,
    caplog: pytest.LogCaptureFixture,
    orderly: bool,
) -> None:
    caplog.set_level(logging.INFO, "outbox.inbox")
    topic, server = make_private_topic(), [private_database]
    stage = InboxStage(private_database, private_stack.bootstrap_servers)
    with (
        standby(private_stack, private_database) as promoted,
        stage.consumer(topic, dsn=lambda: psycopg.connect(server[0]), orderly=orderly) as consumer,
    ):
        stage.produce_numbered(topic, 40, keys=20)
        stage.wait_applied(40)
        wait_until(lambda: value(stage.conn, STORED) == 40, "the positions are stored")
        wait_until(lambda: has_replayed(promoted, private_database), "the standby is level")
        with connect(promoted) as there:
            there.execute("ALTER SYSTEM SET primary_conninfo = ''")
            there.execute("SELECT pg_reload_conf()")
            wait_until(lambda: not value(there, RECEIVING), "the standby lags")
        stage.produce_numbered(topic, 40, keys=20, start=40)
        stage.wait_applied(80)
        wait_until(lambda: value(stage.conn, STORED) == 80, "the positions are stored")
        stage.close()
        private_stack.stop_postgres()
        server[0] = promoted
        with connect(promoted) as there:
            assert value(there, "SELECT pg_promote()")
        after = InboxStage(promoted, private_stack.bootstrap_servers)
        with after.conn as there:
            assert after.count("applied") == 40, "the standby has lost 40 effects"
            stage.produce_numbered(topic, 40, keys=20, start=80)
            after.wait_applied(120)
            wait_until(lambda: value(there, STORED) == 120, "the positions are stored")
            consumer.close()
            assert sorted(map(int, after.applied("body"))) == list(range(120))
            if orderly:
                assert after.by_key() == {f"k{key}": [*range(key, 120, 20)] for key in range(20)}
    assert "took over from" in caplog.text


def test_nothing_is_applied_on_a_server_that_was_replaced_and_still_lives(
    private_stack: Stack,
    private_database: str,
    make_private_topic: MakeTopic,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """New connections lead to the promoted standby; those of the listeners are still open to the old primary."""
    caplog.set_level(logging.INFO, "outbox.inbox")
    topic, server = make_private_topic(), [private_database]
    stage = InboxStage(private_database, private_stack.bootstrap_servers)
    end_keeper = b"""
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name NOT IN ('', 'psql')
            AND application_name NOT LIKE 'outbox-listener%' AND application_name NOT LIKE 'outbox-retr%'
    """

    def open_session() -> psycopg.Connection[Any]:
        return psycopg.connect(server[0], application_name=threading.current_thread().name)

    with standby(private_stack, private_database) as promoted, stage.consumer(topic, dsn=open_session):
        stage.produce_numbered(topic, 40, keys=20)
        stage.wait_applied(40)
        wait_until(lambda: has_replayed(promoted, private_database), "the standby is level")
        with connect(promoted) as there:
            assert value(there, "SELECT pg_promote()")
        server[0] = promoted
        assert stage.conn.execute(end_keeper).rowcount == 1
        wait_until(lambda: "took over from" in caplog.text, "the keeper is led to the new server")
        stage.produce_numbered(topic, 40, keys=20, start=40)
        after = InboxStage(promoted, private_stack.bootstrap_servers)
        after.wait_applied(80)
        assert stage.count("applied") == 40, "nothing is applied where nobody finds it"
        after.close()
    stage.close()


def test_a_connection_that_leads_to_a_standby_counts_no_attempt(
    private_stack: Stack,
    private_database: str,
    make_private_topic: MakeTopic,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The schedule: sessions end, new ones lead to a standby that is not promoted, and later to the primary again."""
    topic, server = make_private_topic(), [private_database]
    stage, seen = InboxStage(private_database, private_stack.bootstrap_servers), list[int]()

    def listener(conn: psycopg.Connection[Any], message: ConsumedMessage) -> ConsumeResult:
        seen.append(message.reconsume_times)
        if len(seen) == 1:
            server[0] = promoted
            stage.end_sessions()
        return apply(conn, message)

    def opened() -> psycopg.Connection[Any]:
        return psycopg.connect(server[0], application_name="outbox consumer")

    def are_led_to_it() -> bool:
        return {"keeper_session", "threads"} <= {
            record.module
            for record in caplog.records
            if record.levelno == logging.WARNING and "leads to a standby" in record.getMessage()
        }

    with standby(private_stack, private_database) as promoted, stage.consumer(topic, listener, dsn=opened):
        stage.produce_numbered(topic, 8)
        wait_until(are_led_to_it, "listeners and keeper are led to the standby")
        server[0] = private_database
        stage.wait_applied(8)
        assert not stage.count("outbox.inbox_parked")
    stage.close()
    assert "the inbox cannot take" not in caplog.text
    assert set(seen) == {0}


@pytest.mark.feature("S-92")
def test_a_member_reads_again_what_a_database_that_was_set_back_lacks(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    """It is dropped and made again from a copy, under a member that runs."""
    name = conninfo_to_dict(database)["dbname"]
    x, saved = sql.Identifier(str(name)), sql.Identifier(f"{name}_saved")
    stage = InboxStage(database, bootstrap_servers)
    with (
        psycopg.connect(make_conninfo(database, dbname="postgres"), autocommit=True) as admin,
        stage.consumer(topic, dsn=lambda: psycopg.connect(database)) as consumer,
    ):
        stage.produce_numbered(topic, 40, keys=20)
        stage.wait_applied(40)
        wait_until(lambda: value(stage.conn, STORED) == 40, "the positions are stored")
        stage.close()
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(x))
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        wait_until(lambda: not value(admin, f"{SESSIONS} WHERE datname = '{name}'"), "nobody is connected")
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(saved, x))
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(x))
        before = InboxStage(database, bootstrap_servers)
        before.produce_numbered(topic, 40, keys=20, start=40)
        before.wait_applied(80)
        wait_until(lambda: value(before.conn, STORED) == 80, "the positions are stored")
        before.close()
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(x))
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(x, saved))
        after = InboxStage(database, bootstrap_servers)
        assert after.count("applied") == 40, "40 effects are lost"
        after.produce_numbered(topic, 40, keys=20, start=80)
        after.wait_applied(120)
        wait_until(lambda: value(after.conn, STORED) == 120, "the positions are stored")
        consumer.close()
        assert sorted(map(int, after.applied("body"))) == list(range(120))
        after.close()
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(saved))


@pytest.mark.feature("S-92")
def test_a_dump_that_is_read_in_under_open_sessions_is_noticed(
    private_stack: Stack, private_database: str, make_private_topic: MakeTopic, tmp_path: Path
) -> None:
    """The schema is dropped and made again by one transaction, and no session ends."""
    process = private_stack.process("postgres")
    assert process is not None, "PostgreSQL is not embedded"
    tools = Path(f"/proc/{process.pid}/exe").resolve().parent
    topic, dump = make_private_topic(), tmp_path / "dump"
    stage = InboxStage(private_database, private_stack.bootstrap_servers)
    with stage.consumer(topic) as consumer:
        stage.produce_numbered(topic, 40, keys=20)
        stage.wait_applied(40)
        wait_until(lambda: value(stage.conn, STORED) == 40, "the positions are stored")
        target = f"--dbname={private_database}"
        subprocess.run([tools / "pg_dump", "--schema=outbox", f"--file={dump}", target], check=True)
        stage.produce_numbered(topic, 40, keys=20, start=40)
        stage.wait_applied(80)
        wait_until(lambda: value(stage.conn, STORED) == 80, "the positions are stored")
        lost = "DELETE FROM public.applied WHERE body::int >= 40;"
        dump.write_text(f"DROP SCHEMA outbox CASCADE;\n{dump.read_text()}\n{lost}\n")
        restore: list[str | Path] = [tools / "psql", "-1", "-q", "-v", "ON_ERROR_STOP=1", "-f", dump, target]
        # Another try where it and a consumer have locked what the other one needs.
        wait_until(lambda: subprocess.run(restore, check=False).returncode == 0, "it is read in")
        stage.produce_numbered(topic, 40, keys=20, start=80)
        stage.wait_applied(120)
        wait_until(lambda: value(stage.conn, STORED) == 120, "the positions are stored")
        consumer.close()
    assert sorted(map(int, stage.applied("body"))) == list(range(120))
    stage.close()
