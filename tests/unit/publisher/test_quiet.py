"""A relay that rests leaves turns out while its server's log does not grow, and nothing is due."""

from __future__ import annotations

from typing import Any

import pytest

from outbox_relay.publisher import wal
from outbox_relay.publisher.prepared import Call
from outbox_relay.publisher.wal import QUIET_S, Positions, Quiet

NEVER = float("inf")


class Server:
    """Replies to what relays ask of a server."""

    def __init__(self, name: bytes = b"one") -> None:
        self.name, self.log, self.asked = name, b"0/1 0/1", 0

    def run(self, call: Call) -> Any:
        """Return the server's name, or where its log ends."""
        self.is_log = b"insert_lsn" in call.statement.text
        self.asked += self.is_log
        return self

    def get_value(self, row: int, column: int) -> bytes | None:
        return self.log if self.is_log else self.name


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(wal, "KNOWN_S", -1.0)
    return Server()


def quiet(server: Any, positions: Positions | None = None) -> Quiet:
    return Quiet(server, positions or Positions())


def lasting(one: Quiet, *times: float, due: float = NEVER) -> list[bool]:
    return [one.lasts(at, due) for at in times]


def test_it_lasts_while_nothing_is_written(server: Server) -> None:
    """What was written is read twice: what is flushed is seen a moment later."""
    one = quiet(server)
    assert lasting(one, 0.0, 0.1, 0.2) == [False, False, True]
    server.log = b"0/2 0/1"
    assert lasting(one, 0.3, 0.4, 0.5) == [False, False, True]
    server.log = b"0/2 0/2"
    assert lasting(one, 0.6, 0.7, 0.8) == [False, False, True], "what was written before is flushed"


def test_it_ends_when_something_is_due_and_after_a_second(server: Server) -> None:
    one = quiet(server)
    assert lasting(one, 0.0, 0.1, 0.4, 0.6, due=0.5) == [False, False, True, False]
    assert lasting(one, 1.0, 1.1, 0.9 + QUIET_S, 1.1 + QUIET_S) == [False, True, True, False]


def test_a_server_that_waits_for_a_standby_is_never_quiet(server: Server) -> None:
    server.log = None  # type: ignore[assignment]
    one = quiet(server)
    assert not any(one.lasts(at / 10, NEVER) for at in range(5))


def test_relays_of_one_server_ask_once_and_those_of_another_one_for_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wal, "KNOWN_S", 3600.0)
    positions, one, other = Positions(), Server(), Server(b"another")
    for server in (one, one, one, other):
        quiet(server, positions).lasts(0.0, NEVER)
    assert (one.asked, other.asked) == (1, 1)
