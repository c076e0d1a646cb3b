"""The fixtures of pytest: there without an import, idle until they are used, and as docs/how-to/test.md shows them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from outbox import Message, Outbox
from outbox_relay.testing.publishing import publish_all
from tests.support.kafka_records import read_topic
from tests.support.topics import Topics

pytestmark = pytest.mark.feature("H-31")
ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "how-to" / "test.md").read_text(encoding="utf-8")
SHOP, *EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FOLDERS = (ROOT, *(ROOT / name for name in ("relay", "local", "migrations", "spark_etl")))


def run_pytest(place: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a project of its own, where the package is installed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOX_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *options],
        cwd=place,
        env={**clean, "PYTHONPATH": os.pathsep.join(map(str, FOLDERS)), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_examples_of_the_page_pass(database: str, bootstrap_servers: str, tmp_path: Path) -> None:
    topic = Topics(bootstrap_servers).make()
    code = re.sub(r'"orders"(?=[,)])', repr(topic), "\n".join(EXAMPLES)).replace(
        '== "orders"', f"== {topic!r}"
    )
    code = code.replace('== ("orders",', f"== ({topic!r},")
    shop = SHOP.replace('Message("orders"', f"Message({topic!r}")
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "test_shop.py").write_text(code)
    ran = run_pytest(tmp_path, "-W", "error", OUTBOX_DSN=database, OUTBOX_BOOTSTRAP_SERVERS=bootstrap_servers)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{PAGE.count('def test_')} passed" in ran.stdout
    assert [record.key for record in read_topic(bootstrap_servers, topic)] == [b"7"]
    with psycopg.connect(database) as conn:
        assert conn.execute("SELECT count(*) FROM outbox.message").fetchone() == (1,)


def test_nothing_is_imported_before_a_fixture_is_used(tmp_path: Path) -> None:
    (tmp_path / "test_idle.py").write_text(
        "import sys\n\n\ndef test_idle(request):\n"
        "    assert request.config.pluginmanager.has_plugin('outbox')\n"
        "    assert {'outbox', 'psycopg', 'confluent_kafka', 'outbox_relay.publisher'}.isdisjoint(sys.modules)\n"
        "    assert 'outbox_relay.testing.plugin' in sys.modules\n"
    )
    ran = run_pytest(tmp_path, "-W", "error")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_missing_address_is_named_with_its_three_places(tmp_path: Path) -> None:
    (tmp_path / "test_lost.py").write_text("def test_lost(outbox_dsn): ...\n")
    ran = run_pytest(tmp_path)
    assert ran.returncode == 1
    assert (
        "outbox_dsn is not known: the address of the database with the schema outbox. Set OUTBOX_DSN"
        in ran.stdout
    )


def test_the_configuration_of_pytest_comes_before_the_environment(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\noutbox_dsn = postgresql://given\n")
    (tmp_path / "test_given.py").write_text(
        "def test_given(outbox_dsn): assert outbox_dsn == 'postgresql://given'\n"
    )
    ran = run_pytest(tmp_path, OUTBOX_DSN="postgresql://other")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_message_that_cannot_be_published_is_reported_at_once(
    database: str, bootstrap_servers: str
) -> None:
    missing = Topics.new_name()
    with psycopg.connect(database) as conn:
        Outbox("orders").send(conn, Message(missing, key="7"))
    with pytest.raises(AssertionError, match=f"topic {missing}, all of it: UNKNOWN_TOPIC_OR_PART"):
        publish_all(database, bootstrap_servers, timeout=60)


def test_a_broker_that_is_away_ends_the_wait(database: str) -> None:
    with pytest.raises(AssertionError, match=r"not all messages were published within 0.5 s: Kafka is away"):
        publish_all(database, "127.0.0.1:1", timeout=0.5)
