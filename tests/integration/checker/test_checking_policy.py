"""The policy against a claim of the same moment: whoever sees whom, there is one verdict."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from outbox.checking import Answer, LocalTransactionState
from outbox.checking.claiming import claim
from outbox.checking.finding import settings
from outbox.checking.settling import Expired, Reply, expire, settle
from outbox.checking.transaction import transaction
from outbox.statements import Plan, Statement
from tests.support.checked_half_messages import GROUP, CheckStage
from tests.support.locks import see_blocked
from tests.support.plain_inserts import connect

GIVEN = "pg_catalog.unnest($1::text[]) AS g (id)"
STALLED = (
    "(SELECT u.id FROM (SELECT pg_advisory_xact_lock(7)) AS gate, unnest($1::text[]) AS u (id)) AS g (id)"
)


def stalled(plan: Plan[Expired]) -> Plan[list[int]]:
    """The policy, made to wait for an advisory lock between its snapshot and its locks."""
    statement = next(plan)
    assert GIVEN in statement.text
    yield Statement("SELECT set_config('lock_timeout', '60s', true)")
    rows = yield statement._replace(text=statement.text.replace(GIVEN, STALLED))
    return [row[0] for row in rows]


@pytest.mark.feature("S-45", "S-51")
@pytest.mark.parametrize("answer", list(LocalTransactionState))
def test_a_policy_that_does_not_see_a_claim_comes_to_one_verdict_all_the_same(
    stage: CheckStage, answer: LocalTransactionState
) -> None:
    half = stage.half()
    stage.enqueue()
    with (
        connect(stage.dsn) as gate,
        connect(stage.dsn) as late,
        stage.connection() as conn,
        ThreadPoolExecutor(1) as threads,
    ):
        group = transaction(conn, "one", settings(GROUP)).settings
        gate.execute("SELECT pg_advisory_lock(7)")
        # Its checks are used up for the policy, whose statement began a moment before the claim's was committed: an
        # operator has just lowered their number.
        stage.conn.execute("UPDATE outbox.pending_check SET checks = 1, answered_at = clock_timestamp()")
        plan = stalled(expire(replace(group, max_checks=1), [half.id]))
        policy = threads.submit(transaction, late, "late", plan)
        see_blocked(stage.conn, late, policy)
        claimed = transaction(conn, "one", claim(group, "one", 10))
        assert [view.id for view in claimed.views] == [half.id]
        gate.execute("SELECT pg_advisory_unlock(7)")
        assert policy.result(30) == [half.id]
        settled = transaction(conn, "one", settle(group, [Reply(half.id, claimed.claim, 0, Answer(answer))]))
    assert (settled.decided, settled.unknown) == (0, 0)
    assert stage.state(half) == "ROLLED_BACK"
    assert [event.to_state for event in stage.events(half) if event.to_state] == ["ROLLED_BACK"]
    assert stage.checks(half) is None
