"""The checker makes partitions ahead, so that producers can send while no relay runs."""

from __future__ import annotations

import logging
import threading

import pytest
from psycopg.conninfo import make_conninfo

from outbox_relay.calls.allow_list import AllowList
from outbox_relay.checker.askers.registered import Askers, trust
from outbox_relay.checker.service import Checker, CheckerOptions
from tests.support.locks import holding
from tests.support.plain_inserts import connect, insert
from tests.support.waiting import wait_until

AHEAD = "SELECT count(*) FROM outbox.partition WHERE lower > (SELECT last_value FROM outbox.position)"


def test_the_checker_makes_partitions_with_no_more_than_its_role_permits(database: str) -> None:
    dsn = make_conninfo(database, options="-c role=outbox_checker")
    checker = Checker(
        CheckerOptions(dsn, partitions_every=0.05), Askers(None, AllowList.read((), ()), {}, trust(None))
    )
    thread = threading.Thread(target=checker.run)
    with connect(database) as conn:
        conn.execute("SELECT setval('outbox.position', (SELECT max(upper) - 1 FROM outbox.partition))")
        thread.start()
        try:
            wait_until(lambda: conn.execute(AHEAD).fetchone() == (3,), "partitions are ahead again")
            assert insert(conn, "orders", "k", "b")
        finally:
            checker.stop()
            thread.join(60)
    assert not thread.is_alive()


def test_a_lock_in_the_way_of_partitions_stops_no_checker_and_is_logged(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    checker = Checker(
        CheckerOptions(database, partitions_every=0.05),
        Askers(None, AllowList.read((), ()), {}, trust(None)),
    )
    thread = threading.Thread(target=checker.run)
    with connect(database) as conn, caplog.at_level(logging.INFO, "outbox"):
        conn.execute("SELECT setval('outbox.position', (SELECT max(upper) - 1 FROM outbox.partition))")
        try:
            with holding(database, "LOCK TABLE outbox.message IN SHARE UPDATE EXCLUSIVE MODE"):
                thread.start()
                wait_until(lambda: "partitions not made" in caplog.text, "it says so")
            wait_until(lambda: conn.execute(AHEAD).fetchone() == (3,), "partitions are ahead again")
        finally:
            checker.stop()
            thread.join(60)
    assert not thread.is_alive()
