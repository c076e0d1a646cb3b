"""The payment of an order: a half message, the local transaction, the confirmation; and the check that replaces it.

The order of calls is RocketMQ's: the half message is stored first, then SQLAlchemy commits the payment, and then the
half message is confirmed. What happens when the process dies:

- before the half message is stored: nothing has happened.
- after it, before the payment commits: the order is not paid. The checker asks, finds no payment with the half
  message's transaction id, and rolls the half message back. The customer pays again, under another half message.
- after the payment commits, before the confirmation: the checker asks, finds the payment, and commits the half message.

`join` locks the half message in the payment's own transaction: no check is made while that runs, and a payment whose
half message was rolled back meanwhile is refused. So "no payment was found" means that none can come.
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy
from sqlalchemy import select
from sqlalchemy.orm import Session

from outbox import Message
from outbox.errors import DecidedOtherwiseError
from outbox.records import MessageView
from outbox.rocketmq import Producer
from outbox_local.shop.failures import Failure, die, is_due, open_database
from outbox_local.shop.tables import Order, Payment

DECLINED = "declined"
"""A card that is not charged."""


class UnknownOrderError(LookupError):
    """There is no such order."""


class PaymentDesk:
    """Charges orders, and replies to the checker's questions about them."""

    def __init__(self, engine: sqlalchemy.Engine, producer: Producer, topic: str) -> None:
        self._engine, self._producer, self._topic = engine, producer, topic

    def pay(self, order_id: str, card: str) -> str:
        """Charge an order once, however often it is called; return its state.

        Raises:
            UnknownOrderError: there is no such order.
        """
        with Session(self._engine) as session:
            order = session.get(Order, order_id)
            if order is None:
                raise UnknownOrderError(order_id)
            if order.state == "paid":
                return "paid"
            message = self._announcement(order)
        transaction = self._producer.begin_transaction()
        self._producer.send(message, transaction)
        try:
            with Session(self._engine) as session:
                transaction.join(session.connection().connection.driver_connection)
                state = self._charge(session, order_id, card, transaction.transaction_id)
        except DecidedOtherwiseError:
            return "new"
        if state == "charged":
            if not self._happens(Failure.CONFIRM, order_id):
                transaction.commit()
            return "paid"
        transaction.rollback()
        return state

    def check(self, view: MessageView) -> bool:
        """Return whether the payment that a half message announces was committed."""
        with Session(self._engine) as session:
            found = select(Payment).filter_by(transaction_id=view.transaction_id)
            return session.scalars(found).first() is not None

    def _announcement(self, order: Order) -> Message:
        body = {"order": order.id, "customer": order.customer, "amount": order.amount}
        return Message(f"{self._topic}:paid", key=order.id, body=json.dumps(body), biz_id=order.id)

    def _charge(self, session: Any, order_id: str, card: str, transaction_id: str) -> str:
        """Run the local transaction; "charged" when it has committed."""
        order = session.get(Order, order_id, with_for_update=True)
        if order.state == "paid":  # by another request, meanwhile
            return "paid"
        if card == DECLINED:
            order.state = "declined"
            session.commit()
            return "declined"
        order.state = "paid"
        session.add(Payment(order_id, transaction_id, order.amount))
        session.flush()
        if self._happens(Failure.CRASH_SERVICE, order_id):
            die()
        session.commit()
        return "charged"

    @staticmethod
    def _happens(failure: Failure, order_id: str) -> bool:
        with open_database() as conn:
            return is_due(conn, failure, order_id)
