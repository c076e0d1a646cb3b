"""Relays that die or are paused while they raise or send an alarm: it arrives, and nothing old is believed.

Dies, or is paused past its claim, between the request and the record: another relay sends the same id and event again,
and the record of the paused one changes nothing. Paused while it observes: its session ends, another relay observes,
and the paused one clears nothing by what it had found before.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.alarm_receiver import Receiver
from tests.support.callback_peer import SECRET
from tests.support.locks import holding
from tests.support.plain_inserts import Connection
from tests.support.relay_process import RelayProcess
from tests.support.waiting import wait_until

KIND = "half_message_exhausted"
OPTIONS = ("--alarm-every", "200ms", "--alarm-allow-network", "127.0.0.0/8")
NOTICE = "SELECT raise_sent_at, claim, tries, send_after FROM outbox.notice"
BLOCKED = """
    SELECT FROM pg_stat_activity a JOIN outbox.turn t USING (pid)
    WHERE a.application_name = 'outbox relay alarms' AND a.datname = current_database() AND a.wait_event_type = 'Lock'
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def relay(database: str, bootstrap_servers: str, receiver: Receiver) -> RelayProcess:
    return RelayProcess(
        database,
        bootstrap_servers,
        *("--alarm-webhook", receiver.url, *OPTIONS),
        variables={"OUTBOX_ALARM_SECRET": SECRET},
    )


def raise_group_alarm(conn: Connection, group: str = "shop", kind: str = "exhausted") -> None:
    conn.execute(
        "INSERT INTO outbox.alarm (producer_group, kind, detail) VALUES (%s, %s, '2 wait')", [group, kind]
    )


@pytest.mark.feature("H-15")
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "paused"])
def test_a_relay_that_stops_between_request_and_record_hands_its_alarm_over(
    conn: Connection, database: str, bootstrap_servers: str, receiver: Receiver, *, is_killed: bool
) -> None:
    raise_group_alarm(conn)
    receiver.replies.clear()
    with relay(database, bootstrap_servers, receiver) as first:
        receiver.wait(KIND, ["raised"])
        if is_killed:
            first.kill()
        else:
            first.pause()
        receiver.replies.set()
        conn.execute("UPDATE outbox.notice SET send_after = clock_timestamp()")  # its claim has passed
        with relay(database, bootstrap_servers, receiver) as second:
            receiver.wait(KIND, ["raised", "raised"])
            recorded = "SELECT FROM outbox.notice WHERE raise_sent_at IS NOT NULL"
            wait_until(lambda: conn.execute(recorded).rowcount == 1, "the second relay has recorded it")
            row = conn.execute(NOTICE).fetchone()
            if not is_killed:
                first.go_on()
                wait_until(
                    lambda: first.find("alarm sent") or first.find("alarm not sent"),
                    "the first one has woken up",
                )
                assert conn.execute(NOTICE).fetchone() == row, "its record finds that its claim has passed"
                first.stop()
            conn.execute("DELETE FROM outbox.alarm")
            receiver.wait(KIND, ["raised", "raised", "cleared"])
            second.stop()
    assert len({each["id"] for each in receiver.of(KIND)}) == 1


@pytest.mark.feature("H-15")
def test_a_relay_that_is_paused_while_it_observes_stops_nobody_and_clears_nothing(
    conn: Connection, database: str, bootstrap_servers: str, receiver: Receiver
) -> None:
    raise_group_alarm(conn)
    with (
        holding(database, "LOCK outbox.notice IN SHARE MODE") as holder,
        relay(database, bootstrap_servers, receiver) as first,
    ):
        wait_until(
            lambda: conn.execute(BLOCKED).rowcount >= 1, "the first relay has found one, and writes it"
        )
        first.pause()
        holder.rollback()
        # It has the turn for as long as its session lasts, which is what a second relay waits for.
        raise_group_alarm(conn, "parcels", "silent")
        with relay(database, bootstrap_servers, receiver) as second:
            receiver.wait("group_silent", ["raised"])
            first.go_on()
            first.wait_for("upkeep failed, trying again", work="watch")
            assert conn.execute("SELECT FROM outbox.notice WHERE cleared_at IS NOT NULL").rowcount == 0
            receiver.wait(KIND, ["raised"])
            conn.execute("DELETE FROM outbox.alarm")
            receiver.wait("group_silent", ["raised", "cleared"])
            receiver.wait(KIND, ["raised", "cleared"])
            first.stop()
            second.stop()
