"""Revision 0004 turns policies on for the tables of consumers while consumers use them, and locks them for a moment.

It dies before its COMMIT, at any line: PostgreSQL rolls all of it back, and consumers go on. A listener that runs for
longer than its locks wait lets it fail, and consumers that came later go on as well. After the COMMIT consumers see
their groups as before: no group is bound yet.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import psycopg
import pytest

from outbox.inbox import keeper, membership, plans, round_trips
from outbox_migrations import api
from tests.support.inbox_stage import InboxStage
from tests.support.locks import holding
from tests.support.logins import Logins
from tests.support.outbox_command import succeed
from tests.support.servers import MakeDatabase

ROW = "INSERT INTO outbox.inbox VALUES (0, gen_random_uuid(), current_date, 0, 0, 0, 'd')"
KNOWS_DELETED = "EXISTS (SELECT FROM outbox.deleted_consumer_group d WHERE d.id = $1::integer)"
REVISION = "SELECT version_num FROM outbox.schema_version"


@pytest.fixture
def old(make_database: MakeDatabase, bootstrap_servers: str) -> Iterator[InboxStage]:
    """A database of revision 0003."""
    dsn = make_database(migrated=False)
    api.upgrade(dsn, "0003")
    stage = InboxStage(dsn, bootstrap_servers)
    # A consumer makes them when it starts; PostgreSQL refuses a row that goes to the DEFAULT partition at that moment.
    stage.conn.execute("SELECT outbox.ensure_inbox_partition(current_date + n) FROM generate_series(-1, 8) n")
    yield stage
    stage.close()


@pytest.fixture
def counts_no_runs(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let consumers be as those of revision 0003: they count no runs, name no reader, and know no pauses."""

    def nothing(result: object) -> Callable[..., Iterator[object]]:
        def plan(*_: object, **__: object) -> Generator[object, object, object]:
            yield from ()
            return result

        return plan

    monkeypatch.setattr(membership, "claim_partitions", nothing({}))
    monkeypatch.setattr(membership, "release", nothing(None))
    monkeypatch.setattr(plans, "next_due", nothing(None))
    monkeypatch.setattr(keeper, "read_pauses", nothing({}))
    join = membership.SQL["join"].replace("partitions, full_keys,", "partitions,")
    join = join.replace("$5::integer, $6::integer,", "$5::integer,").replace(
        "full_keys = EXCLUDED.full_keys,", ""
    )
    join = join.replace(
        "CASE WHEN $5::integer = 0 THEN", "CASE WHEN $5::integer = 0 AND $6::integer = 0 THEN"
    )
    monkeypatch.setattr(membership, "SQL", {**membership.SQL, "join": join})
    take = round_trips._PREPARE_TAKE.replace(KNOWS_DELETED, "false")
    monkeypatch.setattr(round_trips, "_PREPARE_TAKE", take)
    return monkeypatch


@pytest.fixture
def consumer_login(old: InboxStage) -> Iterator[str]:
    made = Logins(old.dsn)
    old.conn.execute("GRANT INSERT ON applied TO PUBLIC")
    yield made.make("outbox_consumer")
    made.drop()


def test_a_consumer_goes_on_while_the_schema_gets_policies(
    old: InboxStage, consumer_login: str, topic: str, counts_no_runs: pytest.MonkeyPatch
) -> None:
    old.produce_numbered(topic, 20)
    with old.consumer(topic, dsn=consumer_login, orderly=True):
        old.wait_applied(20)
        api.upgrade(old.dsn, "0004")
        old.produce_numbered(topic, 20, start=20)
        old.wait_applied(40)
    assert sorted(map(int, old.applied("body"))) == list(range(40))
    counts_no_runs.undo()
    user = str(psycopg.conninfo.conninfo_to_dict(consumer_login)["user"])
    succeed("consumers", "bind", old.group, user, "--dsn", old.dsn)
    old.produce_numbered(topic, 5, start=40)
    with old.consumer(topic, dsn=consumer_login, orderly=True):
        old.wait_applied(45)


@pytest.mark.usefixtures("counts_no_runs")
def test_an_upgrade_that_waits_for_a_long_listener_fails_and_changes_nothing(
    old: InboxStage, consumer_login: str, topic: str
) -> None:
    with old.consumer(topic, dsn=consumer_login) as running:
        with (
            holding(old.dsn, ROW),
            pytest.raises(api.UpgradeBlockedError, match="a lock that other sessions hold"),
        ):
            api.upgrade(old.dsn, "0004")
        assert old.conn.execute(REVISION).fetchone() == ("0003",)
        old.produce_numbered(topic, 20)
        old.wait_applied(20)
        assert running.vitals().defect is None
    api.upgrade(old.dsn, "0004")
    assert old.conn.execute(REVISION).fetchone() == ("0004",)
    assert old.count("outbox.inbox") == 20
