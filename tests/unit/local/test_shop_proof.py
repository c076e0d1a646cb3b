"""The proof of `outbox shop` finds each single thing that could be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from outbox_local.shop.customers import visits
from outbox_local.shop.failures import Failure
from outbox_local.shop.proof import Facts, OrderRow, prove_shop


@dataclass(frozen=True)
class World:
    """A run that is as it should be, to be damaged."""

    facts: Facts
    journal: dict[str, str]
    records: list[str]

    def broken(self) -> set[str]:
        """The claims that do not hold."""
        failures = {Failure.CONFIRM: 1, Failure.BROKER: 1}
        claims = prove_shop(self.facts, self.journal, self.records, failures)
        assert all(claim.checked for claim in claims.values()), "no claim is empty"
        return {name for name, claim in claims.items() if not claim.holds}


@pytest.fixture
def world() -> World:
    """Two paid orders, of one customer; one of a card that was declined, after a crash; one that was left."""
    orders = {
        "o-1": OrderRow("c", 10, "paid"),
        "o-2": OrderRow("c", 5, "paid"),
        "o-3": OrderRow("d", 7, "declined"),
        "o-4": OrderRow("d", 7, "new"),
    }
    facts = Facts(
        orders,
        shipments=["o-1", "o-2"],
        credits=[("o-1", 100), ("o-2", 50)],
        balances={"c": 150},
        carts={"o-1": (1, 0), "o-2": (1, 0), "o-3": (0, 1), "o-4": (0, 1)},
        messages=[("o-1", "ROLLED_BACK"), ("o-1", "PUBLISHED"), ("o-2", "PUBLISHED"), ("o-3", "ROLLED_BACK")],
        happenings={"confirm": 1, "broker-lost": 1, "broker-back": 1},
    )
    return World(facts, {id: order.state for id, order in orders.items()}, ["o-1", "o-2", "o-2"])


def test_a_run_as_it_should_be_is_proven(world: World) -> None:
    assert world.broken() == set()


DAMAGES: dict[str, tuple[Callable[[World], World], set[str]]] = {
    "a shipment is missing": (lambda w: facts_of(w, shipments=["o-1"]), {"shipped"}),
    "a shipment twice": (lambda w: facts_of(w, shipments=["o-1", "o-1", "o-2"]), {"shipped"}),
    "a shipment of an unpaid order": (lambda w: facts_of(w, shipments=["o-1", "o-2", "o-4"]), {"unpaid"}),
    "a credit twice": (
        lambda w: facts_of(w, credits=[*w.facts.credits, ("o-1", 100)]),
        {"credited"},
    ),
    "a wrong credit": (lambda w: facts_of(w, credits=[("o-1", 99), ("o-2", 50)]), {"credited"}),
    "a wrong balance": (lambda w: facts_of(w, balances={"c": 250}), {"balanced"}),
    "a balance without an order": (lambda w: facts_of(w, balances={"c": 150, "d": 70}), {"balanced"}),
    "a cart twice": (lambda w: facts_of(w, carts={**w.facts.carts, "o-1": (2, 0)}), {"emptied"}),
    "a cart not emptied": (lambda w: facts_of(w, carts={**w.facts.carts, "o-1": (0, 1)}), {"emptied"}),
    "a cart of an unpaid order": (
        lambda w: facts_of(w, carts={**w.facts.carts, "o-3": (1, 0)}),
        {"unpaid"},
    ),
    "a lost message": (lambda w: replace(w, records=["o-1"]), {"lost"}),
    "a message of an unpaid order": (lambda w: replace(w, records=[*w.records, "o-3"]), {"unpaid"}),
    "an undecided half message": (
        lambda w: facts_of(w, messages=[*w.facts.messages, ("o-4", "UNKNOWN")]),
        {"decided"},
    ),
    "two published messages of an order": (
        lambda w: facts_of(w, messages=[*w.facts.messages, ("o-1", "PUBLISHED")]),
        {"decided"},
    ),
    "a reply that is not true": (lambda w: replace(w, journal={**w.journal, "o-4": "paid"}), {"accounted"}),
    "an order that is gone": (lambda w: replace(w, journal={**w.journal, "o-9": "paid"}), {"accounted"}),
    "a failure that did not happen": (
        lambda w: facts_of(w, happenings={"confirm": 1, "broker-back": 1}),
        {"happened"},
    ),
}


def facts_of(world: World, **changes: object) -> World:
    """The world with other facts."""
    return replace(world, facts=replace(world.facts, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_breaks_its_claim_and_no_other(world: World, damage: str) -> None:
    change, broken = DAMAGES[damage]
    assert change(world).broken() == broken


def test_the_seed_decides_what_customers_do() -> None:
    planned = visits(40, 1)
    assert planned == visits(40, 1)
    assert planned != visits(40, 2)
    assert {visit.intent for visit in planned} == {"paid", "declined", "new"}
