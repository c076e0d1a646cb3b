"""The acceptance tests of both services, over HTTP: written before there was an outbox, and the same after it."""

import json
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4


class Shop:
    """A service that runs somewhere."""

    def __init__(self, url):
        self.url = url

    def ask(self, method, path, body=None):
        """Return the status and the body of the reply."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, {"content-type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=30) as reply:
                return reply.status, json.load(reply)
        except HTTPError as error:
            return error.code, None

    def place(self, id, amount):
        return self.ask("POST", "/orders", {"id": id, "amount": amount})[0]

    def pay(self, id):
        return self.ask("POST", f"/orders/{id}/pay")[0]

    def ship(self, id):
        return self.ask("POST", f"/orders/{id}/ship")[0]

    def state(self, id):
        status, order = self.ask("GET", f"/orders/{id}")
        return order["state"] if status == 200 else None


def test_an_order_is_placed_and_paid_and_shipped(shop):
    id = str(uuid4())
    assert shop.place(id, 20) == 201
    assert shop.state(id) == "placed"
    assert shop.pay(id) == 200
    assert shop.state(id) == "paid"
    assert shop.ship(id) == 200
    assert shop.state(id) == "shipped"


def test_an_order_whose_card_is_declined_is_not_paid(shop):
    id = str(uuid4())
    assert shop.place(id, 5000) == 201
    assert shop.pay(id) == 402
    assert shop.state(id) == "placed"


def test_an_order_is_placed_once(shop):
    id = str(uuid4())
    assert shop.place(id, 20) == 201
    assert shop.place(id, 30) == 409


def test_an_order_that_is_not_paid_is_not_shipped(shop):
    id = str(uuid4())
    assert shop.ship(id) == 404
    assert shop.place(id, 20) == 201
    assert shop.ship(id) == 409
