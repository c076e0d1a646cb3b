"""The outbox in Django's transactions: what holds beyond the contract of all adapters."""

from __future__ import annotations

import re
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connection, connections, models, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase

from outbox import Message, Outbox
from outbox.adapters.django import DjangoOutbox
from outbox.errors import ConfigurationError, InvalidConnectionError, NoTransactionError
from outbox.testing import SentMessages
from tests.support.django_project import alias_of, databases
from tests.support.plain_inserts import Connection
from tests.support.servers import MakeDatabase

pytestmark = pytest.mark.feature("H-17")
PAGE = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "how-to" / "django.md"
INSTALLED, PAY, ALONE, ALIASES = re.findall(
    r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
MESSAGE = Message("orders", key="o-1", body="b")


class Order(models.Model):  # type: ignore[misc]
    """A row of the application."""

    state = models.TextField()

    class Meta:
        """Of an application that is not installed."""

        app_label = "shop"
        db_table = "orders"


@pytest.fixture
def two(database: str, make_database: MakeDatabase) -> Iterator[str]:
    """Two databases with the outbox and a table; the DSN of the second."""
    other = make_database()
    with databases(default=alias_of(database), other=alias_of(other)):
        for alias in ("default", "other"):
            with connections[alias].schema_editor() as editor:
                editor.create_model(Order)
        yield other


def count(dsn: str) -> int:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("SELECT count(*) FROM outbox.message").fetchone()
        assert row is not None
        return int(row[0])


def test_the_first_argument_says_in_which_database(database: str, two: str) -> None:
    orders = DjangoOutbox(producer_group="orders")
    here: list[Any] = [connection, connections["default"], "default", Order]
    there: list[Any] = ["other", connections["other"]]
    with transaction.atomic():
        here.append(Order.objects.create(state="new"))
        for target in here:
            orders.send(target, MESSAGE)
        assert count(database) == 0
    with transaction.atomic(using="other"):
        there.append(Order.objects.using("other").create(state="new"))
        for target in there:
            orders.send(target, MESSAGE)
    assert (count(database), count(two)) == (len(here), len(there))


@pytest.mark.usefixtures("two")
def test_a_block_of_another_alias_is_no_transaction(database: str) -> None:
    with transaction.atomic(using="other"), pytest.raises(NoTransactionError, match="using='default'"):
        DjangoOutbox().send(Order, MESSAGE)
    assert count(database) == 0


@pytest.mark.usefixtures("two")
def test_what_is_asked_to_may_commit_by_itself(database: str) -> None:
    alone = DjangoOutbox(producer_group="orders", own_transaction=True)
    half = alone.prepare("default", Message("orders", key="o-1", checker="c", biz_id="1"))
    assert count(database) == 1
    with transaction.atomic():
        alone.commit("default", half)
        transaction.set_rollback(True)
    with transaction.atomic():
        assert not DjangoOutbox().commit("default", half).repeated


@pytest.mark.usefixtures("two")
def test_transactions_by_hand_are_fine(database: str) -> None:
    transaction.set_autocommit(False)
    DjangoOutbox().send("default", MESSAGE)
    transaction.rollback()
    DjangoOutbox().send("default", MESSAGE)
    transaction.commit()
    transaction.set_autocommit(True)
    assert count(database) == 1


@pytest.mark.usefixtures("two")
def test_a_test_case_is_no_transaction_of_the_application() -> None:
    found: list[object] = []

    class Case(TestCase):  # type: ignore[misc]
        """Runs its test in a block of its own."""

        databases = frozenset({"default"})

        def test(self) -> None:
            """Send outside, and inside of a block of the application's."""
            with pytest.raises(NoTransactionError, match="only the TestCase has begun a transaction"):
                DjangoOutbox().send(Order, MESSAGE)
            with transaction.atomic():
                found.append(DjangoOutbox().send(Order, MESSAGE).topic)
            found.append(DjangoOutbox(own_transaction=True).send(Order, MESSAGE).topic)

    result = unittest.TestSuite([Case("test")]).run(unittest.TestResult())
    assert result.wasSuccessful(), "".join(text for _, text in [*result.errors, *result.failures])
    assert found == ["orders"] * 2


@pytest.mark.usefixtures("two")
def test_an_error_of_the_database_is_djangos_and_ends_the_block(database: str) -> None:
    with psycopg.connect(database) as conn:
        conn.execute("ALTER TABLE outbox.message RENAME COLUMN biz_id TO other")
    with transaction.atomic():
        Order.objects.create(state="lost")
        with pytest.raises(DatabaseError) as caught:
            DjangoOutbox().send("default", MESSAGE)
        assert isinstance(caught.value.__cause__, psycopg.errors.UndefinedColumn)
        assert "run: outbox db upgrade" in caught.value.__notes__[0]
        with pytest.raises(TransactionManagementError):
            Order.objects.count()
        with pytest.raises(TransactionManagementError):
            DjangoOutbox().send("default", MESSAGE)
    assert Order.objects.count() == 0


@pytest.mark.usefixtures("two")
def test_an_error_in_a_block_of_its_own_leaves_the_outer_one(database: str) -> None:
    with psycopg.connect(database) as conn:
        conn.execute("ALTER TABLE outbox.message RENAME COLUMN biz_id TO other")
    with transaction.atomic():
        Order.objects.create(state="kept")
        with pytest.raises(DatabaseError), transaction.atomic():
            DjangoOutbox().send("default", MESSAGE)
        Order.objects.create(state="kept")
    assert Order.objects.count() == 2


@pytest.mark.parametrize(
    "options", [{"pool": True}, {"server_side_binding": True}, {"prepare_threshold": 0}], ids=str
)
def test_options_of_a_database_do_not_matter(database: str, options: dict[str, Any]) -> None:
    with databases(default=alias_of(database, **options)):
        for _ in range(3):
            with transaction.atomic():
                DjangoOutbox().send_many("default", [MESSAGE, MESSAGE])
        if "pool" in options:
            connections["default"].close_pool()
    assert count(database) == 6


@pytest.mark.parametrize(
    ("target", "error", "text"),
    [
        (lambda: "missing", ConfigurationError, "'missing' is not in DATABASES; allowed: 'default', 'lite'"),
        (
            object,
            InvalidConnectionError,
            r"conn: is builtins\.object; allowed here: a model or its",
        ),
        (lambda: "lite", InvalidConnectionError, r"sqlite3.*allowed: django\.db\.backends\.postgresql"),
    ],
)
def test_what_cannot_carry_a_message_is_refused_by_name(
    database: str, target: Callable[[], Any], error: type[Exception], text: str
) -> None:
    lite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    with databases(default=alias_of(database), lite=lite), pytest.raises(error, match=text):
        DjangoOutbox().send(target(), MESSAGE)


@pytest.mark.usefixtures("two")
def test_psycopgs_outbox_names_the_one_for_django() -> None:
    with pytest.raises(InvalidConnectionError, match=r"use outbox\.adapters\.django\.DjangoOutbox for it"):
        Outbox().send(connection, MESSAGE)


@pytest.mark.usefixtures("two")
def test_messages_of_a_key_are_in_the_order_of_its_row(conn: Connection) -> None:
    """Models write at `save`, so what was sent after it waits for the row's lock."""
    with transaction.atomic():
        order = Order.objects.create(state="new")
    with transaction.atomic():
        order.state = "paid"
        order.save()
        DjangoOutbox().send(order, Message("orders", key="o", body="paid"))
        conn.execute("SET lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            conn.execute("UPDATE orders SET state = 'sent'")


def test_the_page_of_django_runs_as_it_stands(database: str, two: str) -> None:
    names: dict[str, Any] = {"INSTALLED_APPS": []}
    for part in (INSTALLED, PAY, ALIASES):
        exec(part, names)
    assert (names["INSTALLED_APPS"], names["OUTBOX_DATABASES"]) == (["outbox.adapters.django"], ["default"])
    with transaction.atomic():
        order = Order.objects.create(state="new")
    names["pay"](order)
    with psycopg.connect(database) as conn:
        found = conn.execute("SELECT m.body, o.state FROM outbox.message m, orders o").fetchall()
    assert found == [(b"paid", "paid")]
    exec(ALONE, names)
    assert (count(database), count(two)) == (2, 0)


@pytest.mark.usefixtures("two")
def test_a_test_sees_what_its_transaction_sent() -> None:
    with transaction.atomic():
        sent = SentMessages(connection.connection)
        DjangoOutbox(producer_group="orders").send("default", MESSAGE)
        sent.assert_sent("orders", key="o-1", body="b")
        transaction.set_rollback(True)
    sent.refute_sent("orders")
