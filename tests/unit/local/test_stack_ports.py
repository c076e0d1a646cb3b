"""A reserved port is ours alone: a server of ours can bind over it, and nobody is given it."""

from __future__ import annotations

import socket

from outbox_local.stack.ports import LOOPBACK, Reservation, listens


def test_server_binds_over_the_reservation_again_and_again() -> None:
    reserved = Reservation()
    for _ in range(3):
        assert not listens(reserved.port)
        with socket.create_server((LOOPBACK, reserved.port)):  # sets SO_REUSEADDR, as servers do
            assert listens(reserved.port)
    reserved.release()


def test_reserved_port_is_not_handed_out() -> None:
    reserved = [Reservation() for _ in range(200)]
    assert len({reservation.port for reservation in reserved}) == len(reserved)
    for reservation in reserved:
        reservation.release()


def test_wanted_port_is_reserved_when_it_is_free() -> None:
    first = Reservation()
    first.release()
    second = Reservation(first.port)
    assert second.port == first.port
    second.release()


def test_another_port_is_reserved_when_a_server_listens_on_the_wanted_one() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        taken = server.getsockname()[1]
        reserved = Reservation(taken)
        assert reserved.port != taken
        reserved.release()
