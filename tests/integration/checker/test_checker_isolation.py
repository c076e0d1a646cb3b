"""The checker and operators decide at READ COMMITTED, whatever default the database, the role or the address sets."""

from __future__ import annotations

from uuid import UUID

import pytest
from psycopg.conninfo import make_conninfo

from outbox import Outbox
from outbox.checking.claiming import Claimed, claim
from outbox.checking.group_settings import GroupSettings
from outbox.checking.transaction import transaction
from outbox.records import HalfMessage
from outbox.statements import Plan
from outbox_relay.checker.connection import KeptConnection
from outbox_relay.database import connections
from outbox_relay.operations.decide import deciding
from tests.support.checked_half_messages import GROUP, CheckStage, Script


@pytest.fixture(params=["repeatable read", "serializable"])
def strict(request: pytest.FixtureRequest, database: str) -> str:
    """The database's address, with a stricter default."""
    level = str(request.param).replace(" ", "\\ ")
    return make_conninfo(database, options=f"-c default_transaction_isolation={level}")


def test_a_claim_passes_over_what_is_decided_after_its_transaction_began(
    strict: str, stage: CheckStage
) -> None:
    half = stage.half()
    stage.check(Script(None))
    stage.make_due()

    def decided_in_between() -> Plan[Claimed]:
        stage.decide(half, "COMMITTED")
        return (yield from claim(GroupSettings(GROUP), "me", 10))

    connection = KeptConnection(strict)
    with connection.use() as conn:
        claimed = transaction(conn, "me", decided_in_between())
    connection.close()
    assert (claimed.views, claimed.decided) == ([], 1)


def test_an_operator_is_told_of_a_decision_made_after_the_transaction_began(
    strict: str, stage: CheckStage
) -> None:
    half = stage.half()
    with connections.connect(strict) as conn, deciding(conn, 1.0):
        stage.decide(half, "COMMITTED")
        decision = Outbox().commit(conn, HalfMessage(half.id, UUID(half.message_id), "t"))
    assert decision.repeated
