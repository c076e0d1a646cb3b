"""`--http`: what it replies, and that a client can take nothing from the process but a few threads."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import click
import pytest

from outbox import probes
from outbox.inbox.metrics import METRICS as MEMBER_METRICS
from outbox.probes import ProbeCheck
from outbox_relay.cli.monitoring import Address
from outbox_relay.monitoring.catalogue import METRICS, Families
from outbox_relay.monitoring.relays import observe_relays
from outbox_relay.monitoring.server import PATHS, AddressError, Monitoring, MonitoringServer
from outbox_relay.publisher.vitals import Vitals
from tests.support import site
from tests.support.scraping import get, probe, scrape
from tests.support.waiting import wait_until


@pytest.fixture
def monitoring() -> Monitoring:
    return Monitoring()


@pytest.fixture
def port(monitoring: Monitoring) -> Iterator[int]:
    with MonitoringServer("127.0.0.1", 0, monitoring) as server:
        yield server.port


def test_a_probe_fails_if_one_check_does_and_names_each(monitoring: Monitoring, port: int) -> None:
    assert probe(port, "/livez") == (200, {"ok": True, "checks": []})
    monitoring.ready.append(
        lambda: [ProbeCheck("a", True, "works"), ProbeCheck("b", False, "PostgreSQL is away")]
    )
    monitoring.live.append(lambda: [ProbeCheck("a", True, "works")])
    status, page = probe(port, "/readyz?verbose")
    assert status == 503
    assert not page["ok"]
    assert page["checks"][1] == {"name": "b", "ok": False, "detail": "PostgreSQL is away"}
    assert probe(port, "/livez")[0] == 200


def test_another_path_is_refused_with_the_paths_that_there_are(port: int) -> None:
    status, page = get(port, "/status")
    assert status == 404
    assert all(path in page for path in PATHS)


def test_a_defect_of_a_page_ends_the_request_and_shows_nothing(monitoring: Monitoring, port: int) -> None:
    def defect(families: Families) -> None:
        raise ValueError("password=secret")

    monitoring.metrics.append(defect)
    status, page = get(port, "/metrics")
    assert (status, page) == (500, "see the log\n")
    assert probe(port, "/livez")[0] == 200


def test_clients_that_say_nothing_hold_the_server_for_a_moment_only(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes._Handler, "timeout", 0.3)
    with ExitStack() as stack:
        for _ in range(3 * probes.AT_A_TIME):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))

        def replies() -> bool:
            try:
                return get(port, "/livez")[0] == 200
            except OSError:
                return False

        wait_until(replies, "the server replies again", seconds=10)


def test_an_address_that_is_taken_is_an_error_that_names_it(port: int) -> None:
    with pytest.raises(AddressError, match=f"127.0.0.1 port {port}.*\n.*another port"):
        MonitoringServer("127.0.0.1", port, Monitoring()).__enter__()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::1]:1", ("::1", 1)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_a_port_alone_is_one_of_loopback(text: str, address: tuple[str, int]) -> None:
    assert Address().convert(text, None, None) == address


@pytest.mark.parametrize("text", ["", ":9464", "9464:", "70000", "http://localhost:80", "a b:1", "host:١"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected PORT"):
        Address().convert(text, None, None)


def test_counts_of_earlier_sessions_stay(monitoring: Monitoring, port: int) -> None:
    vitals = Vitals()
    vitals.counts.recorded, vitals.counts.batches = 5, 2
    vitals.end()
    vitals.counts.recorded += 3
    vitals.counts.ack.add(0.004)
    vitals.counts.ack.add(1_000.0)
    vitals.counts.age.add(-1.0)
    observe_relays(monitoring, lambda: {"shop": vitals})
    found = scrape(port)
    assert found["outbox_published_messages_total",] == 8
    assert found["outbox_published_batches_total",] == 2
    assert found["outbox_kafka_ack_seconds_bucket", "0.002"] == 0
    assert found["outbox_kafka_ack_seconds_bucket", "0.005"] == 1
    assert found["outbox_kafka_ack_seconds_bucket", "+Inf"] == found["outbox_kafka_ack_seconds_count",] == 2
    assert found["outbox_kafka_ack_seconds_sum",] == pytest.approx(1_000.004)
    assert found["outbox_publish_latency_seconds_sum",] == 0


def test_a_relay_that_gives_no_sign_hangs_and_one_that_is_in_trouble_is_not_ready(
    monitoring: Monitoring, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    vitals = Vitals()
    observe_relays(monitoring, lambda: {"shop": vitals})
    assert probe(port, "/livez")[0] == 200
    assert probe(port, "/readyz")[1]["checks"][0]["detail"] == "it starts"
    vitals.trouble = None
    assert probe(port, "/readyz")[1]["checks"][0]["detail"] == "stands by"
    monkeypatch.setattr("outbox_relay.publisher.vitals.HANGS_S", -1.0)
    status, page = probe(port, "/livez")
    assert status == 503
    assert page["checks"][0]["detail"].endswith("it hangs")


def test_prometheus_may_ask_for_openmetrics(monitoring: Monitoring, port: int) -> None:
    observe_relays(monitoring, lambda: {"shop": Vitals()})
    accept = "application/openmetrics-text; version=1.0.0"
    assert get(port, "/metrics", accept=accept)[1].endswith("# EOF\n")


def test_the_site_describes_each_metric_and_no_other() -> None:
    page = site.page("operations/metrics.md")
    described = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `outbox_")}
    kinds = {name: one.kind for name, one in METRICS.items()}
    kinds |= {name: one.kind for name, one in MEMBER_METRICS.items()}
    exported = {name + ("_total" if kind == "counter" else "") for name, kind in kinds.items()}
    assert described == exported


def test_a_metric_that_is_not_in_the_catalogue_is_a_defect() -> None:
    with pytest.raises(KeyError):
        Families().add("outbox_unknown", "shop", value=1)
