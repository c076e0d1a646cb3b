"""The proof: replies to customers, business tables and topic agree, and each paid order had each effect once.

A pure function over what `read_facts` and a stock consumer have found. Of the outbox's own tables it uses the status
of half messages only, for the claim that each is decided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from outbox_local.demo.claims import Claim
from outbox_local.shop.failures import SQL, Failure
from outbox_local.shop.tables import POINTS_PER_EURO

HAPPENS_AS = {Failure.BROKER: "broker-lost"}
"""How the record of a failure is called, where its switch has another name."""


@dataclass(frozen=True, slots=True)
class OrderRow:
    """An order as the shop has it at the end."""

    customer: str
    amount: int
    state: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What is found at the end."""

    orders: Mapping[str, OrderRow]
    shipments: Sequence[str]
    credits: Sequence[tuple[str, int]]
    balances: Mapping[str, int]
    carts: Mapping[str, tuple[int, int]]
    """How often each was emptied, and what is left in it."""
    messages: Sequence[tuple[str, str]]
    """Orders that half messages are about, with their status."""
    happenings: Mapping[str, int]


def read_facts(conn: psycopg.Connection[Any]) -> Facts:
    """Read the business tables."""

    def rows(name: str) -> list[Any]:
        return conn.execute(SQL[f"facts_{name}"]).fetchall()

    return Facts(
        {id: OrderRow(customer, amount, state) for id, customer, amount, state in rows("orders")},
        [order for (order,) in rows("shipments")],
        rows("credits"),
        dict(rows("balances")),
        {order: (emptied, items) for order, emptied, items in rows("carts")},
        rows("messages"),
        dict(rows("happenings")),
    )


def prove_shop(
    facts: Facts, journal: Mapping[str, str], records: Sequence[str], failures: Mapping[Failure, int]
) -> dict[str, Claim]:
    """Compare.

    Args:
        facts: the tables.
        journal: the state of each order, as the shop replied to its customer.
        records: the order of each record in the topic, as a stock consumer read them.
        failures: how often each failure was to happen at least.
    """
    paid = {id for id, order in facts.orders.items() if order.state == "paid"}
    return {
        "accounted": _accounted(facts, journal),
        "happened": _happened(facts, failures),
        "decided": _decided(facts, paid),
        "lost": _lost(paid, records),
        "shipped": _once("one shipment", paid, Counter(facts.shipments)),
        "credited": _credited(facts, paid),
        "balanced": _balanced(facts, paid),
        "emptied": _once(
            "one emptied cart", paid, Counter({id: n for id, (n, _) in facts.carts.items() if n})
        ),
        "unpaid": _unpaid(facts, paid, records),
    }


def _accounted(facts: Facts, journal: Mapping[str, str]) -> Claim:
    claim = Claim("every order of a customer is in the state that the shop replied", len(journal))
    for id, reply in journal.items():
        found = facts.orders.get(id)
        if found is None or found.state != reply:
            claim.offend(
                f"{id}: the shop replied {reply!r}, and it is {found.state if found else 'missing'!r}"
            )
    return claim


def _happened(facts: Facts, failures: Mapping[Failure, int]) -> Claim:
    claim = Claim("every failure that was switched on took place", sum(failures.values()))
    for failure, planned in failures.items():
        found = facts.happenings.get(HAPPENS_AS.get(failure, failure), 0)
        if found < planned:
            claim.offend(f"{failure}: {found} of {planned} took place")
    return claim


def _decided(facts: Facts, paid: set[str]) -> Claim:
    claim = Claim("every half message is decided: one is published for each paid order", len(facts.messages))
    published: Counter[str] = Counter()
    for order, status in facts.messages:
        if status == "PUBLISHED":
            published[order] += 1
        elif status != "ROLLED_BACK":
            claim.offend(f"{order}: its message is {status}")
    for order in paid | published.keys():
        if published[order] != (order in paid):
            claim.offend(f"{order}: {published[order]} messages are published")
    return claim


def _lost(paid: set[str], records: Sequence[str]) -> Claim:
    claim = Claim("no message is lost: every paid order is in the topic", len(paid))
    for order in sorted(paid - set(records)):
        claim.offend(f"{order}: not in the topic")
    return claim


def _once(effect: str, paid: set[str], found: Counter[str]) -> Claim:
    claim = Claim(f"every paid order has exactly {effect}", len(paid))
    for order in sorted(paid):
        if found[order] != 1:
            claim.offend(f"{order}: {found[order]}")
    return claim


def _credited(facts: Facts, paid: set[str]) -> Claim:
    claim = _once("one credit of points", paid, Counter(order for order, _ in facts.credits))
    for order, points in facts.credits:
        if order in paid and points != facts.orders[order].amount * POINTS_PER_EURO:
            claim.offend(f"{order}: {points} points for {facts.orders[order].amount} €")
    return claim


def _balanced(facts: Facts, paid: set[str]) -> Claim:
    right: Counter[str] = Counter()
    for id in paid:
        right[facts.orders[id].customer] += facts.orders[id].amount * POINTS_PER_EURO
    claim = Claim("every customer's balance is the sum of their paid orders", len(right))
    for customer in sorted(right.keys() | facts.balances.keys()):
        if right[customer] != facts.balances.get(customer, 0):
            claim.offend(f"{customer}: {facts.balances.get(customer, 0)}, not {right[customer]}")
    return claim


def _unpaid(facts: Facts, paid: set[str], records: Sequence[str]) -> Claim:
    claim = Claim(
        "an order that is not paid has no effect, and is not in the topic", len(facts.orders) - len(paid)
    )
    effects = {
        "a shipment": facts.shipments,
        "a credit": [order for order, _ in facts.credits],
        "an emptied cart": [id for id, (emptied, items) in facts.carts.items() if emptied or not items],
        "a record": records,
    }
    for effect, orders in effects.items():
        for order in sorted(set(orders) - paid):
            claim.offend(f"{order}: {effect}")
    return claim
