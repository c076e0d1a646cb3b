"""The path of a new user: a service that exists is given the outbox as the page has it, and keeps its promises.

Both services are the page's own files. Their acceptance tests pass before and after; then customers order while the
relay is killed (SIGKILL), go on without one, and another relay starts. What Kafka has is compared with what the
customers saw confirmed.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.existing_services import (
    STATES,
    TOPIC,
    Customers,
    Project,
    changed,
    commands,
    shown,
    stated,
)
from tests.support.kafka_records import Record, TopicReader, compare
from tests.support.outbox_command import succeed
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase
from tests.support.topics import Topics
from tests.support.waiting import wait_until

pytestmark = pytest.mark.feature("H-32")
ORDERS = 8
INSTALLED = "pip install "
RELAY = "relay run"


@pytest.mark.parametrize(("service", "folder"), [("FastAPI and SQLAlchemy", "fastapi"), ("Django", "django")])
def test_the_page_states_and_shows_what_changes(service: str, folder: str) -> None:
    assert stated(service) == changed(folder)
    after = Path("docs/tutorial", folder, "after")
    root = Path(__file__).resolve().parents[2]
    files = {path.relative_to(root / after).as_posix() for path in (root / after).rglob("*.py")}
    assert set(shown(folder)) == files


def test_an_existing_service_of_fastapi_gets_the_outbox(
    make_database: MakeDatabase, bootstrap_servers: str, tmp_path: Path
) -> None:
    dsn, topic = make_database(migrated=False), Topics.new_name()
    url = dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    project = Project("fastapi", tmp_path, {"DATABASE_URL": url})
    serve = ("uvicorn", "service:app", "--log-level", "warning", "--port", "{port}")
    with project.serving(*serve) as shop:
        Customers(shop).accept()
    project.add_outbox(topic)

    def run(words: list[str]) -> None:
        assert words[0] == "outbox"
        succeed(*words[1:], OUTBOX_DSN=dsn, OUTBOX_BOOTSTRAP_SERVERS=bootstrap_servers)

    run_commands("FastAPI and SQLAlchemy", topic, run)
    with project.serving(*serve) as shop:
        order_while_the_relay_is_killed(shop, dsn, bootstrap_servers, topic)


def test_an_existing_shop_of_django_gets_the_outbox(
    make_database: MakeDatabase, bootstrap_servers: str, tmp_path: Path
) -> None:
    dsn, topic = make_database(migrated=False), Topics.new_name()
    names = {
        "dbname": "PGDATABASE",
        "user": "PGUSER",
        "password": "PGPASSWORD",
        "host": "PGHOST",
        "port": "PGPORT",
    }
    given = {names[name]: str(value) for name, value in conninfo_to_dict(dsn).items() if name in names}
    project = Project("django", tmp_path, {**given, "OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers})
    serve = ("manage.py", "runserver", "--noreload", "--skip-checks", "127.0.0.1:{port}")
    project.run("manage.py", "migrate")
    with project.serving(*serve) as shop:
        Customers(shop).accept()
    project.add_outbox(topic)

    def run(words: list[str]) -> None:
        assert words[0] == "python"
        project.run(*words[1:])

    run_commands("Django", topic, run)
    with project.serving(*serve) as shop:
        order_while_the_relay_is_killed(shop, dsn, bootstrap_servers, topic)


def run_commands(heading: str, topic: str, run: Callable[[list[str]], None]) -> None:
    """Run the commands of a section, but those that install, and its last one, which runs the relay."""
    lines = [line for line in commands(heading) if not line.startswith(INSTALLED)]
    assert lines[-1].endswith(RELAY)
    for line in lines[:-1]:
        run(shlex.split(line.replace(TOPIC, topic)))


def order_while_the_relay_is_killed(shop: Any, dsn: str, bootstrap_servers: str, topic: str) -> None:
    """Run the acceptance tests and customers; the relay dies with messages behind it and in front of it."""
    customers = Customers(shop)
    reader = TopicReader(bootstrap_servers, topic)
    try:
        with RelayProcess(dsn, bootstrap_servers) as relay:
            customers.accept()
            customers.order(ORDERS)
            wait_until(reader.read, "the relay has published")
            relay.kill()
        customers.order(ORDERS)
        assert len(reader.read()) < len(customers.changes)
        with RelayProcess(dsn, bootstrap_servers):
            wait_until(
                lambda: {identify(record) for record in reader.read()} >= set(customers.changes),
                "what was confirmed is published",
            )
        assert compare(reader.read(), customers.changes, identify).broken == ""
    finally:
        reader.close()
    with psycopg.connect(dsn) as conn:
        rows = conn.execute("SELECT (SELECT last_value FROM outbox.position) - count(*) FROM outbox.message")
        [(rolled_back,)] = rows.fetchall()
    assert rolled_back >= customers.declined > ORDERS // 4, "requests that failed had sent before"


def identify(record: Record) -> tuple[str, int]:
    """Read order and state by number."""
    assert record.key is not None
    assert record.value is not None
    return record.key.decode(), STATES.index(record.value.decode())
