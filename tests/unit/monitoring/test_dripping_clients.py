"""Clients that never finish their request keep no probe from its reply.

An orchestrator that gets no reply three times ends the process, so whoever reaches the port could end every relay,
checker and consumer with sixteen connections. Here such clients are more than the server has places for, they go on for
as long as the test runs, and an innocent prober is replied to each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from outbox import probes
from outbox.inbox.metrics import serve_metrics
from outbox.probes import ProbeServer
from outbox_relay.monitoring.server import AddressError, Monitoring, MonitoringServer
from tests.support.dripping_clients import DrippingClients
from tests.support.outbox_command import outbox
from tests.support.scraping import get, probe
from tests.support.waiting import wait_until
from tests.unit.inbox.test_consumer_metrics_page import Member, vitals

LOOPBACK = "127.0.0.1"
PROBES = 25


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def of_relay(stack: ExitStack) -> ProbeServer:
    """Serve as `outbox relay run`, `outbox checker run` and `outbox metrics serve` do."""
    return stack.enter_context(MonitoringServer(LOOPBACK, 0, Monitoring()))


def of_consumer(stack: ExitStack) -> ProbeServer:
    """Serve as a consumer's process does."""
    return stack.enter_context(serve_metrics([Member(vitals())], 0))


@pytest.mark.parametrize("served", [of_relay, of_consumer])
def test_a_prober_is_replied_to_each_time_while_others_drip(
    stack: ExitStack, served: Callable[[ExitStack], ProbeServer]
) -> None:
    port = served(stack).port
    with DrippingClients(port, 2 * probes.AT_A_TIME) as clients:
        wait_until(lambda: clients.rounds > 1, "they drip")
        for _ in range(PROBES):
            rounds = clients.rounds
            assert probe(port, "/livez")[0] == 200
            assert probe(port, "/readyz")[0] == 200
            wait_until(lambda before=rounds: clients.rounds > before, "they go on")  # type: ignore[misc]


def test_a_request_that_never_ends_is_closed_whatever_it_sends(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "TIMEOUT_S", 0.5)
    port = of_relay(stack).port
    with DrippingClients(port, 3) as clients:
        wait_until(lambda: len(clients.closed) == 3, "each of them is closed")
        assert probe(port, "/livez")[0] == 200


def test_more_connections_than_places_close_the_oldest(stack: ExitStack) -> None:
    port = of_relay(stack).port
    with DrippingClients(port, probes.AT_A_TIME) as old:
        wait_until(lambda: old.rounds > 1, "they drip")
        with DrippingClients(port, probes.AT_A_TIME):
            wait_until(lambda: len(old.closed) == probes.AT_A_TIME, "the older ones make room")
            assert probe(port, "/livez")[0] == 200


@pytest.mark.parametrize("is_consumer", [False, True])
def test_liveness_has_a_listener_of_its_own(stack: ExitStack, is_consumer: bool) -> None:
    server = stack.enter_context(
        serve_metrics([Member(vitals())], 0, livez=0)
        if is_consumer
        else MonitoringServer(LOOPBACK, 0, Monitoring(), livez=(LOOPBACK, 0))
    )
    assert probe(server.livez_port, "/livez") == probe(server.port, "/livez")
    assert get(server.livez_port, "/metrics") == (404, "not here; expected one of /livez\n")
    assert get(server.livez_port, "/readyz")[0] == 404
    assert get(server.port, "/readyz")[0] == 200


def test_a_second_address_that_is_taken_is_named_and_frees_the_first(stack: ExitStack) -> None:
    taken = of_relay(stack).port
    server = MonitoringServer(LOOPBACK, 0, Monitoring(), livez=(LOOPBACK, taken))
    with pytest.raises(AddressError, match=f"--livez: cannot listen at 127.0.0.1 port {taken}"):
        server.__enter__()
    with pytest.raises(IndexError):
        _ = server.port


@pytest.mark.parametrize("command", [("relay", "run"), ("checker", "run")])
def test_a_second_listener_without_a_first_is_refused(command: tuple[str, ...]) -> None:
    ran = outbox(
        *command, "--dsn", "postgresql://nobody@127.0.0.1:1/x", "--livez", "0", OUTBOX_BOOTSTRAP_SERVERS="b:1"
    )
    assert ran.code == 2
    assert "--livez is a second listener; it needs --http" in ran.err
