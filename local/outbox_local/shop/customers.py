"""Customers: threads that order and pay over HTTP, ask again when the shop does not reply, and keep a journal."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

PRODUCTS = (("lamp", 40), ("chair", 85), ("book", 18), ("bicycle", 420), ("teapot", 25), ("radio", 60))
CUSTOMERS = 7
AT_A_TIME = 4
PATIENCE_S = 40.0
"""How long a customer asks a shop that does not reply."""


@dataclass(frozen=True, slots=True)
class Visit:
    """What a customer is going to do: chosen before, so that the seed decides it."""

    order: str
    customer: str
    product: str
    amount: int
    intent: str
    """paid: pays; declined: pays with a card that is not charged; new: leaves without paying."""


def visits(count: int, seed: int) -> list[Visit]:
    """What the customers will do: two in ten do not end as paid orders."""
    dice = random.Random(f"{seed} shop")  # noqa: S311 (no secret)
    found = []
    for number in range(1, count + 1):
        product, amount = dice.choice(PRODUCTS)
        intent = dice.choices(("paid", "declined", "new"), (80, 10, 10))[0]
        customer = f"customer-{dice.randint(1, CUSTOMERS)}"
        found.append(Visit(f"o-{number:04}", customer, product, amount, intent))
    return found


class Customers:
    """Pays the visits; `journal` has, by order, the state that the shop has replied."""

    def __init__(self, port: int, planned: list[Visit], pause: float) -> None:
        self._port, self._planned, self._pause = port, planned, pause
        self.journal: dict[str, str] = {}
        self.asked_again = 0
        """Requests that were repeated because the shop did not reply."""
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="customer")
        self._futures = [self._pool.submit(self._visit, number, one) for number, one in enumerate(planned)]

    @property
    def served(self) -> int:
        """How many visits have ended."""
        return len(self.journal)

    def finished(self) -> bool:
        """Whether all visits have ended; raises what a customer's thread raised."""
        done = [future for future in self._futures if future.done()]
        for future in done:
            future.result()
        return len(done) == len(self._futures)

    def close(self) -> None:
        """Send the customers home."""
        self._ends.set()
        self._pool.shutdown(cancel_futures=True)

    def _visit(self, number: int, visit: Visit) -> None:
        if self._ends.wait(self._pause):
            return
        order = {
            "id": visit.order,
            "customer": visit.customer,
            "product": visit.product,
            "amount": visit.amount,
        }
        self._ask("/orders", order)
        state = "new"
        if visit.intent != "new":
            path, card = f"/orders/{visit.order}/payment", {"card": visit.intent}
            while (state := str(self._ask(path, card)["state"])) == "new":
                self._again()
        with self._lock:
            self.journal[visit.order] = state

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask until the shop replies. It replies the same to a second request, so asking again does no harm."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._request(path, body)
            except (OSError, http.client.HTTPException):
                if time.monotonic() > deadline or self._ends.is_set():
                    raise
                self._again()

    def _again(self) -> None:
        with self._lock:
            self.asked_again += 1
        self._ends.wait(0.2)

    def _request(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        conn = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            conn.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            reply = conn.getresponse()
            text = reply.read()
        finally:
            conn.close()
        if reply.status != 200:
            raise http.client.HTTPException(f"{path}: {reply.status} {text[:200]!r}")
        found: dict[str, Any] = json.loads(text)
        return found
