"""What operators are told: groups nobody can be asked about, and messages that are left to them."""

from __future__ import annotations

import threading

import pytest

from outbox.callbacks import protocol
from tests.support.callback_peer import Line, Peer, reply
from tests.support.checker_process import CheckerProcess, Groups
from tests.support.waiting import wait_until


@pytest.mark.feature("S-49")
def test_nobody_registered_raises_an_alarm_and_uses_up_no_check(database: str, groups: Groups) -> None:
    registered = threading.Event()

    def serve(line: Line) -> None:
        while (question := line.read()) is not None:
            if registered.is_set():
                line.write(reply(question))
            else:
                body = protocol.no_checker_body("no listener is registered for checker 'payment'")
                line.write(reply(question, body, status=404))

    with Peer(serve) as peer, CheckerProcess(database, ports=(peer.port,)):
        groups.register("shop", {"kind": "http", "url": peer.url()}, max_checks=1)
        groups.prepare("shop")
        alarm = wait_until(lambda: groups.alarm("shop", "no_checker"), "the alarm is raised")
        assert "no listener is registered for checker 'payment'" in alarm
        assert groups.checks("shop") == 0
        registered.set()
        groups.wait_for("shop", {"COMMITTED": 1})
        wait_until(lambda: groups.alarm("shop", "no_checker") is None, "the alarm is cleared")


@pytest.mark.feature("S-49")
@pytest.mark.parametrize(
    ("callback", "why"),
    [
        ({"kind": "http", "url": "https://shop.example.com/"}, "OUTBOX_CALLBACK_SECRET_SHOP"),
        ({"kind": "http", "url": "ftp://shop.example.com/"}, "scheme 'ftp'"),
        (
            {"kind": "sql", "query": "SELECT true", "dsn_env": "OUTBOX_CALLBACK_DSN_NONE"},
            "set OUTBOX_CALLBACK_DSN_NONE",
        ),
        ({"kind": "sql", "query": "DELETE FROM outbox.message"}, "must begin with SELECT"),
    ],
)
def test_what_the_operator_has_to_repair_is_an_alarm_and_uses_up_no_check(
    database: str, groups: Groups, callback: dict[str, str], why: str
) -> None:
    groups.register("shop", callback, max_checks=1)
    groups.prepare("shop")
    with CheckerProcess(database, variables={"OUTBOX_CALLBACK_SECRET": ""}):
        alarm = wait_until(lambda: groups.alarm("shop", "no_checker"), "the alarm is raised")
    assert why in alarm
    assert groups.states("shop") == {"UNKNOWN": 1}
    assert groups.checks("shop") == 0


@pytest.mark.feature("S-49", "S-51")
def test_in_process_groups_are_not_asked_but_watched(database: str, groups: Groups) -> None:
    groups.register("own", None)
    groups.prepare("own", 3)
    with CheckerProcess(database):
        alarm = wait_until(lambda: groups.alarm("own", "no_checker"), "somebody tells")
        assert "3" in alarm
        assert groups.states("own") == {"UNKNOWN": 3}
        groups.register("own", None, max_age="0.1 s")
        wait_until(lambda: groups.alarm("own", "silent"), "operators are warned before it ends")
        groups.conn.execute("UPDATE outbox.alarm SET since = since - interval '10 min' WHERE kind = 'silent'")
    with CheckerProcess(database):
        groups.wait_for("own", {"EXHAUSTED": 3})
        wait_until(lambda: groups.alarm("own", "no_checker") is None, "the alarm is cleared")
        wait_until(lambda: groups.alarm("own", "exhausted"), "operators are told")
