"""The demo's proof of a warehouse: it holds for what is right, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outbox_local.demo.claims import ProofResult
from outbox_local.demo.history import prove_history
from outbox_local.demo.tables import Tables
from tests.support.demo_tables import TOPIC, tables
from tests.support.demo_world import World, world
from tests.support.flight_tables import WRECKS


@pytest.fixture
def made() -> World:
    return world(seed=2)


def judged(made: World, found: Tables) -> ProofResult:
    return prove_history(made.source, made.entries, found, seed=made.seed, clocks_s=1.0)


def test_what_is_right_holds(made: World) -> None:
    proof = judged(made, tables(made))
    assert proof.holds, proof.claims
    assert all(claim.checked for claim in proof.claims.values())


@pytest.mark.parametrize("name", WRECKS)
def test_one_wrong_row_breaks_its_claim(made: World, name: str) -> None:
    wreck, claim = WRECKS[name]
    proof = judged(made, wreck(tables(made)))
    assert not proof.claims[claim].holds, [each for each, held in proof.claims.items() if not held.holds]


def test_a_rolled_back_flight_is_named(made: World) -> None:
    right = tables(made)
    gone = next(flight for flight in made.source if flight.rolls_back(made.seed))
    row = {
        **right.history[0],
        "body": f'{{"row":{gone.number}}}'.encode(),
        "offset": 10_000,
        "message_id": "x",
    }
    proof = judged(made, replace(right, history=[*right.history, row]))
    assert gone.name in proof.claims["rolled back"].offenders[0]


def test_what_is_no_flight_is_named_by_its_place(made: World) -> None:
    right = tables(made)
    for offset, body in enumerate((b"no JSON", b"[]", b"null", None), 10_000):
        row = {**right.history[0], "body": body, "offset": offset, "message_id": "x"}
        proof = judged(made, replace(right, history=[*right.history, row]))
        assert f"offset {offset}" in proof.claims["nothing else"].offenders[0]


def test_rows_of_other_topics_are_left_out(made: World) -> None:
    right = tables(made)
    other = {**right.history[0], "topic": "elsewhere"}
    assert judged(made, replace(right, history=[*right.history, other]).of(TOPIC)).holds
