"""The shop's rows that SQLAlchemy writes: orders, payments, and what the group `points` credits."""

from __future__ import annotations

import os

import psycopg
import sqlalchemy
from sqlalchemy import Column, Identity, Integer, String, Table
from sqlalchemy.orm import registry

MAPPERS = registry()
POINTS_PER_EURO = 10


class Order:
    """An order of a customer."""

    id: str
    customer: str
    product: str
    amount: int
    state: str

    def __init__(self, id: str, customer: str, product: str, amount: int, state: str = "new") -> None:
        self.id, self.customer, self.product = id, customer, product
        self.amount, self.state = amount, state


class Payment:
    """The payment of an order, with the transaction id of the half message that announces it."""

    order_id: str
    transaction_id: str
    amount: int

    def __init__(self, order_id: str, transaction_id: str, amount: int) -> None:
        self.order_id, self.transaction_id, self.amount = order_id, transaction_id, amount


class Cart:
    """The cart from which an order was made."""

    order_id: str

    def __init__(self, order_id: str) -> None:
        self.order_id = order_id


class Credit:
    """Points for an order."""

    def __init__(self, order_id: str, customer: str, points: int) -> None:
        self.order_id, self.customer, self.points = order_id, customer, points


def _map(cls: type, name: str, *columns: Column[str] | Column[int]) -> None:
    MAPPERS.map_imperatively(cls, Table(name, MAPPERS.metadata, *columns, schema="shop"))


_map(
    Order,
    "orders",
    Column("id", String, primary_key=True),
    Column("customer", String),
    Column("product", String),
    Column("amount", Integer),
    Column("state", String),
)
_map(
    Payment,
    "payment",
    Column("order_id", String, primary_key=True),
    Column("transaction_id", String),
    Column("amount", Integer),
)
_map(Cart, "cart", Column("order_id", String, primary_key=True))
_map(
    Credit,
    "credit",
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("order_id", String),
    Column("customer", String),
    Column("points", Integer),
)


def make_engine() -> sqlalchemy.Engine:
    """Make an engine for the database of OUTBOX_DSN, given as any text that libpq reads."""
    dsn = os.environ["OUTBOX_DSN"]
    return sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
