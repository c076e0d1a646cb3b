"""The shop's service: orders and payments over HTTP, the checker's callback, and the page that shows it all."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from outbox.callbacks import CallbackReceiver
from outbox.checking import Listeners
from outbox.rocketmq import Producer
from outbox_local.shop.failures import SQL, Failure, note, open_database, switch_on
from outbox_local.shop.names import SHOP_GROUP
from outbox_local.shop.payments import PaymentDesk, UnknownOrderError
from outbox_local.shop.tables import Cart, Order, make_engine

SECRET = "OUTBOX_CALLBACK_SECRET"  # noqa: S105 (the name of a variable)
PAGE = "page.html"


@dataclass(frozen=True, slots=True)
class NewOrder:
    """What a customer orders."""

    id: str
    customer: str
    product: str
    amount: int


@dataclass(frozen=True, slots=True)
class Card:
    """With what a customer pays."""

    card: str


class Shop:
    """The handlers. They are plain functions, so FastAPI runs each request in a thread."""

    def __init__(self, topic: str) -> None:
        self._engine = make_engine()
        dsn = os.environ["OUTBOX_DSN"]
        # The checker is a process of its own, and asks by the callback.
        self.producer = Producer(dsn, producer_group=SHOP_GROUP, topics=[topic], check=False)
        self.desk = PaymentDesk(self._engine, self.producer, topic)

    def order(self, order: NewOrder) -> dict[str, str]:
        """Take an order, once, with its cart."""
        with Session(self._engine) as session, session.begin():
            if session.get(Order, order.id) is None:
                session.add(Order(order.id, order.customer, order.product, order.amount))
                session.add(Cart(order.id))
        return {"id": order.id}

    def pay(self, order_id: str, card: Card) -> dict[str, str]:
        """Charge an order."""
        try:
            return {"state": self.desk.pay(order_id, card.card)}
        except UnknownOrderError:
            raise HTTPException(404, f"there is no order {order_id}") from None

    def switch_on(self, name: Failure) -> dict[str, str]:
        """Let a failure happen once more."""
        with open_database() as conn:
            switch_on(conn, name)
            note(conn, "switch", f"{name} was switched on")
        return {"failure": name}

    def board(self) -> dict[str, Any]:
        """Return what the page shows."""
        with open_database() as conn, conn.cursor(row_factory=dict_row) as cursor:
            return {
                "orders": cursor.execute(SQL["board_orders"]).fetchall(),
                "counts": cursor.execute(SQL["board_counts"]).fetchone(),
                "happenings": cursor.execute(SQL["board_happenings"]).fetchall(),
            }


def page() -> str:
    """Return the page, which fetches the board twice a second."""
    return files("outbox_local.shop").joinpath(PAGE).read_text(encoding="utf-8")


def application(shop: Shop) -> FastAPI:
    """Make the application."""
    listeners = Listeners()
    listeners.register(shop.desk)
    app = FastAPI(title="outbox shop")
    app.add_api_route("/", page, methods=["GET"], response_class=HTMLResponse)
    app.add_api_route("/board", shop.board, methods=["GET"])
    app.add_api_route("/orders", shop.order, methods=["POST"])
    app.add_api_route("/orders/{order_id}/payment", shop.pay, methods=["POST"])
    app.add_api_route("/failures/{name}", shop.switch_on, methods=["POST"])
    app.mount("/outbox", CallbackReceiver(listeners, os.environ[SECRET]))
    return app


def main(topic: str, port: str) -> None:
    """Run as `python -m outbox_local.shop.service TOPIC PORT`, until SIGTERM."""
    shop = Shop(topic)
    # uvicorn ends gracefully at SIGTERM, and then sends it once more to the handler that was there before.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    with shop.producer:
        uvicorn.run(application(shop), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
