"""The schema first, then one process after the other: what runs meanwhile, and is started again, goes on.

A process of the version before knows an older revision than the database has. It meets the newer schema when it
connects again, after a restart of PostgreSQL or of itself, at any moment until it is replaced. Whether it may go on is
stated by the schema, in a row that the upgrade writes in its own transaction: revision and statement never differ.

- It dies before its first session, or at any line after: it holds nothing, or the other relay takes its lanes.
- It is paused past its lease, as any relay: the other one takes its lanes.
- It divides the lanes with a newer relay, which leads all of them when it has ended.
- The schema does not admit it: it ends with an error that names the repair. A session that has begun is not asked
  again, so a revision that older software must not meet is brought when that software is stopped (docs/releasing.md).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox_migrations import api
from tests.support.checker_process import CheckerProcess, Groups
from tests.support.consumer_process import ConsumerProcess
from tests.support.inbox_stage import InboxStage
from tests.support.kafka_records import compare, read_topic
from tests.support.older_software import BEFORE
from tests.support.outbox_command import succeed
from tests.support.plain_inserts import wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase
from tests.support.steady_producers import ASK, ASKED, LOCAL_TRANSACTION, SteadyProducers
from tests.support.waiting import wait_until

END_SESSIONS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name ~ '^outbox (relay|checker)'
"""


@pytest.fixture
def stage(make_database: MakeDatabase, bootstrap_servers: str) -> Iterator[InboxStage]:
    """A database of the revision before, with a consumer's table and a group that the checker asks about."""
    dsn = make_database(migrated=False)
    api.upgrade(dsn, BEFORE)
    stage = InboxStage(dsn, bootstrap_servers)
    stage.conn.execute(LOCAL_TRANSACTION)
    groups = Groups(dsn)
    groups.register(ASKED, ASK)
    groups.close()
    yield stage
    stage.close()


@pytest.mark.feature("H-22")
def test_all_processes_of_the_version_before_go_on_until_they_are_replaced(
    stage: InboxStage, bootstrap_servers: str, topic: str, older_entry: tuple[str, str]
) -> None:
    with (
        CheckerProcess(stage.dsn, entry=older_entry) as checker,
        RelayProcess(stage.dsn, bootstrap_servers, entry=older_entry) as relay,
        SteadyProducers(stage.dsn, topic, has_checker=True) as producers,
        ConsumerProcess(stage, topic, "a", fails=7, older=older_entry[1]) as consumer,
    ):
        checker.wait_until_running()
        relay.wait_until_running()
        producers.wait_for(20, *producers.done)
        stage.wait_applied(20)
        assert succeed("db", "upgrade", "--json", OUTBOX_DSN=stage.dsn).json["from"] == BEFORE

        stage.conn.execute(END_SESSIONS)
        wait_until(lambda: relay.count("lanes taken") >= 2, "the older relay publishes again")
        wait_until(lambda: checker.count("connected") >= 2, "the older checker asks again")
        producers.wait_for(20, *producers.done)

        relay.kill()
        checker.stop()
        with (
            RelayProcess(stage.dsn, bootstrap_servers, entry=older_entry).wait_until_running() as restarted,
            RelayProcess(stage.dsn, bootstrap_servers) as new,
            CheckerProcess(stage.dsn) as newer,
        ):
            new.wait_for("lanes taken", lanes=[4, 5, 6, 7])
            newer.wait_until_running()
            producers.wait_for(20, *producers.done)
            restarted.stop()
            new.wait_for("lanes taken", lanes=[*range(8)])
            producers.wait_for(20, *producers.done)
            producers.stop()
            wait_until(lambda: not stage.count("outbox.message", "state = 'UNKNOWN'"), "all are decided")
            wait_published(stage.conn)
            newer.stop()
            new.stop()
        stage.wait_applied(len(producers.committed))
        consumer.stop()
    assert relay.count("PostgreSQL refused, trying again") == 0
    found = compare(read_topic(bootstrap_servers, topic), producers.committed)
    assert not found.broken
    assert len(stage.applied()) == len(set(stage.applied())) == len(producers.committed)
    assert all(
        versions == sorted(versions)
        for key, versions in effects_by_key(stage).items()
        if not key.startswith(ASKED)
    )


def effects_by_key(stage: InboxStage) -> dict[str, list[int]]:
    """Return the versions of each key in the order in which the consumer applied them."""
    found: dict[str, list[int]] = {}
    for body in stage.applied("body"):
        key, _, version = body.rpartition(":")
        found.setdefault(key, []).append(int(version))
    return found
