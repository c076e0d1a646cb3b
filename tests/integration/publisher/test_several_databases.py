"""One process that serves several databases: each relay works, fails and starts again by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outbox_relay.publisher.service import Relay
from tests.support.kafka_records import compare, read_topic
from tests.support.outbox_command import outbox
from tests.support.plain_inserts import connect, insert_numbered, numbered, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase, MakeTopic
from tests.support.waiting import wait_until


@contextmanager
def closed(dsn: str) -> Iterator[None]:
    """Let nobody into a database, and end its sessions."""
    name = conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as conn:
        conn.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'.encode())
        conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            yield
        finally:
            conn.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'.encode())


def publish(dsn: str, topic: str, start: int) -> None:
    """Send some messages, and wait until they are published."""
    with connect(dsn) as conn:
        insert_numbered(conn, topic, 50, start=start)
        wait_published(conn)


@pytest.fixture
def places(make_database: MakeDatabase, make_topic: MakeTopic) -> list[tuple[str, str]]:
    return [(make_database(), make_topic()) for _ in range(2)]


@pytest.mark.feature("H-20")
def test_one_database_goes_away_and_comes_back_while_the_other_flows(
    places: list[tuple[str, str]], bootstrap_servers: str, tmp_path: Path
) -> None:
    (lost, its_topic), (kept, topic) = places
    config = tmp_path / "relay.toml"
    config.write_text(f'[databases]\nlost = "{lost}"\nkept = "{kept}"\n', encoding="utf-8")
    variables = {"OUTBOX_CONFIG": str(config)}
    with RelayProcess("", bootstrap_servers, variables=variables) as relay:
        for name in ("lost", "kept"):
            relay.wait_for("lanes taken", database=name)
        publish(lost, its_topic, 0)
        publish(kept, topic, 0)
        with closed(lost):
            relay.wait_for("PostgreSQL is away", database="lost")
            publish(kept, topic, 50)
        publish(lost, its_topic, 50)
        assert relay.find("PostgreSQL is away", database="kept") is None
        assert "database" in relay.wait_for("lanes taken")
        relay.stop()
        assert relay.count("stopped") == 2
    for name in (its_topic, topic):
        assert not compare(read_topic(bootstrap_servers, name), numbered(100)).broken


def test_a_relay_that_fails_starts_again_alone_and_the_exit_code_reports_it(
    places: list[tuple[str, str]], bootstrap_servers: str
) -> None:
    (broken, _), (kept, topic) = places
    with connect(broken) as conn:
        conn.execute("DELETE FROM outbox.lane WHERE lane > 3")
    action = ("run", "--log-format", "json", "--dsn", broken, "--dsn", kept)
    with RelayProcess("", bootstrap_servers, action=action) as relay:
        wait_until(lambda: relay.count("the relay of one database failed") > 1, "it fails and starts again")
        publish(kept, topic, 0)
        failed = relay.wait_for("the relay of one database failed")
        assert "4 lanes, and this version works with 8" in failed["error"]
        relay.terminate()
        assert relay.wait() == 1
    assert "4 lanes, and this version works with 8" in relay.output()


def test_the_same_database_twice_is_refused() -> None:
    dsn = "postgresql://me:secret@db1/shop"
    ran = outbox("relay", "run", "--dsn", dsn, "--dsn", dsn, "--bootstrap-servers", "localhost:9092")
    assert (ran.code, 'database "shop" at db1:5432 is given twice' in ran.err) == (2, True)
    assert "secret" not in ran.err


def test_one_connection_for_retention_is_refused_for_several_databases() -> None:
    ran = outbox(
        *("relay", "run", "--dsn", "host=db1 dbname=a", "--dsn", "host=db1 dbname=b"),
        *("--retain", "30d", "--retain-dsn", "host=db1 dbname=a", "--bootstrap-servers", "localhost:9092"),
    )
    assert (ran.code, "--retain-dsn names one database" in ran.err) == (2, True)


@pytest.mark.parametrize("text", ["", "[databases]", "[databases]\nshop = 3", "databases = ["])
def test_a_file_without_databases_is_refused(tmp_path: Path, text: str) -> None:
    config = tmp_path / "relay.toml"
    config.write_text(text, encoding="utf-8")
    ran = outbox("relay", "run", "--config", str(config), "--bootstrap-servers", "localhost:9092")
    assert (ran.code, str(config) in ran.err) == (2, True)


def test_one_database_is_served_by_one_relay_without_threads_around_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: list[str] = []
    monkeypatch.setattr(Relay, "run", lambda self: served.append(self._options.dsn))
    dsn = "host=db1 dbname=shop"
    ran = outbox("relay", "run", OUTBOX_DSN=dsn, OUTBOX_BOOTSTRAP_SERVERS="localhost:9092")
    assert (ran.code, served) == (0, [dsn])


@pytest.mark.feature("H-20")
def test_two_databases_may_publish_to_one_topic_each_in_its_order(
    make_database: MakeDatabase, bootstrap_servers: str, topic: str
) -> None:
    """As two environments that have the same topics: their relays share nothing, and neither stops the other."""
    first, second = make_database(), make_database()
    with RelayProcess(first, bootstrap_servers) as one, RelayProcess(second, bootstrap_servers) as other:
        for relay in (one, other):
            relay.wait_for("lanes taken")
        for start in (0, 50):
            publish(first, topic, start)
            publish(second, topic, 1_000 + start)
        one.stop()
        other.stop()
    records = read_topic(bootstrap_servers, topic)
    for start in (0, 1_000):
        own = [one for one in records if start <= int((one.value or b"").split(b":")[1]) < start + 1_000]
        found = compare(own, numbered(100, start=start))
        assert not found.broken
        assert found.duplicate_records == 0
