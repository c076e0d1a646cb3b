"""Each extra, installed alone: what its comment in pyproject.toml promises is imported, and its page's example runs.

The versions are those of the lock, and nothing is installed that only another extra, or a tool of the tests, brings.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.support.features import ROOT
from tests.support.servers import MakeDatabase
from tests.support.wheel_environments import Environment

# One worker builds the wheel once for all of these.
pytestmark = pytest.mark.xdist_group("extras")

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]


def block(page: str, holding: str, language: str = "python") -> str:
    """The example of a page that has these words."""
    text = (ROOT / page).read_text(encoding="utf-8")
    [found] = [
        each
        for each in re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if holding in each
    ]
    return str(found)


IMPORT_ALL = """
import importlib, pkgutil
def import_all(name, *, but=()):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.startswith(tuple(but) or ("-",)) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""
URL = 'import os; url = os.environ["OUTBOX_DSN"].replace("postgresql://", "postgresql+{driver}://", 1)\n'
CONN = 'import os, psycopg; dsn = os.environ["OUTBOX_DSN"]; conn = psycopg.connect(dsn)\n'
KAFKA = 'kafka = {"bootstrap.servers": "127.0.0.1:9"}\ndef listener(conn, message): ...\n'
RUN_PAY = """
import asyncio
async def use():
    async with app.router.lifespan_context(app):
        async with AsyncSession(engine) as session, session.begin():
            await pay("o-2", session)
asyncio.run(use())
"""
DJANGO = """
import os, django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
given = conninfo_to_dict(os.environ["OUTBOX_DSN"])
given = {name.upper().replace("DBNAME", "NAME"): value for name, value in given.items()}
database = {"ENGINE": "django.db.backends.postgresql"}
database |= {name: given[name] for name in ("NAME", "USER", "PASSWORD", "HOST", "PORT") if name in given}
settings.configure(DATABASES={"default": database}, INSTALLED_APPS=["outbox.adapters.django"])
django.setup()
import outbox.inbox.django
"""
PAY_BY_DJANGO = """
from django.db import models
class Order(models.Model):
    state = models.TextField()
    class Meta:
        app_label, db_table, managed = "shop", "order_of_django", False
from django.db import connection
with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE order_of_django (id bigint PRIMARY KEY, state text)")
    cursor.execute("INSERT INTO order_of_django VALUES (2, 'new')")
pay(Order.objects.get(pk=2))
"""
FIXTURE = """
import os, pathlib, subprocess, sys
pathlib.Path("shop.py").write_text({shop!r})
pathlib.Path("test_shop.py").write_text({test!r})
ran = subprocess.run([sys.executable, "-m", "pytest", "-q", "test_shop.py"], text=True, capture_output=True)
assert ran.returncode == 0, ran.stdout + ran.stderr
"""
KEYS = 'import pathlib; pathlib.Path("master-keys").write_text("2026-11:" + "A" * 43 + "=")\n'

PROMISED = {
    "relay": IMPORT_ALL
    + "OF_OTHERS = ('console', 'testing', 'downloads', 'warehouse', 'monitoring.batch_spans')\n"
    + "import_all('outbox_relay', but=[f'outbox_relay.{other}' for other in OF_OTHERS])\n",
    "sqlalchemy": URL.format(driver="psycopg")
    + "from outbox import Message; from sqlalchemy import create_engine; from sqlalchemy.orm import Session\n"
    + "session = Session(create_engine(url))\n"
    + block("README.md", "outbox.adapters.sqlalchemy")
    + "session.commit()\n",
    "fastapi": URL.format(driver="psycopg") + block("docs/how-to/fastapi.md", "FastAPI(") + RUN_PAY,
    "asyncpg": CONN + block("docs/how-to/asyncpg.md", "AsyncpgOutbox"),
    "consumer": "import os\n" + block("README.md", "PushConsumer("),
    "encryption": KEYS + CONN + block("docs/how-to/personal-data.md", "Encryption(keys") + "conn.commit()\n",
    "schema-registry": "import outbox.codecs.schemas\n"
    + block("docs/how-to/schema-registry.md", "orders.load()").partition("registry =")[0],
    "django": DJANGO + block("docs/how-to/django.md", "def pay(order)") + PAY_BY_DJANGO,
    "testing": FIXTURE.format(
        shop=block("docs/how-to/test.md", "def place_order(conn"),
        test=block("docs/how-to/test.md", "def test_an_order_is_announced(conn, sent)"),
    ),
    "opentelemetry": CONN + block("docs/how-to/trace-messages.md", 'Outbox("shop", tracing'),
    "local": IMPORT_ALL + "import_all('outbox_relay.downloads'); "
    "import_all('outbox_local', but=('outbox_local.demo', 'outbox_local.shop'))\n",
    "etl": IMPORT_ALL + "import_all('outbox_etl'); import_all('outbox_relay.warehouse')\n"
    "import outbox_relay.cli.etl.commands, outbox_etl.report.charts\n"
    "import pyspark, pyarrow, adbc_driver_postgresql, orjson, duckdb, matplotlib\n",
    "console": IMPORT_ALL
    + "import_all('outbox_relay.console'); import outbox_relay.cli.console.commands\n"
    + "import starlette, uvicorn, jinja2\n",
    "demo": IMPORT_ALL
    + "import_all('outbox_local.demo')\n"
    + "from outbox_local.demo.flights import read_flights\nassert len(read_flights(10)) == 10\n",
    "shop": IMPORT_ALL + "import_all('outbox_local.shop')\n",
}
"""For each extra, a program that does what it promises; it has OUTBOX_DSN, and the schema with `orders`."""

SENDS = {"sqlalchemy", "fastapi", "asyncpg", "encryption", "django", "opentelemetry"}
"""Those whose program writes a message."""


def test_each_extra_has_a_program() -> None:
    assert set(PROMISED) == set(EXTRAS)


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_an_extra_promises_works_with_it_alone(
    extra: str, wheel: Path, install: Callable[..., Environment], make_database: MakeDatabase
) -> None:
    environment = install(f"outbox-kafka[{extra}] @ {wheel.as_uri()}")
    dsn = make_database()
    with psycopg.connect(dsn) as conn:
        conn.execute("CREATE TABLE orders AS SELECT 'o-2'::text AS id, 'new'::text AS state")
        conn.execute("CREATE TABLE customer (id bigint, street text)")
    program = environment.home / "program.py"
    program.write_text(PROMISED[extra], encoding="utf-8")
    variables = {"OUTBOX_DSN": dsn, "OUTBOX_TEST_DSN": dsn, "OUTBOX_BOOTSTRAP_SERVERS": "127.0.0.1:9"}
    ran = environment.run("python", str(program), **variables)
    assert ran.returncode == 0, ran.stderr
    with psycopg.connect(dsn) as conn:
        [(sent,)] = conn.execute("SELECT count(*) FROM outbox.message").fetchall()
    assert sent == (extra in SENDS)
    # The pages' first line is all that a machine without libpq needs.
    assert environment.python("import psycopg; print(psycopg.pq.__impl__)") == "binary"
