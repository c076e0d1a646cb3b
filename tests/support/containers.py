"""The shared servers as containers, through testcontainers, where a Docker engine answers.

The containers are those of `outbox up`: one compose file, two callers.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from testcontainers.compose import DockerCompose

from outbox_local.stack import survey
from outbox_local.stack.ports import LOOPBACK, Reservation


def engine_answers() -> bool:
    """Tell whether containers can be had."""
    return bool(survey.docker())


@dataclass(frozen=True, slots=True)
class Containers:
    """A running PostgreSQL and a running Kafka broker."""

    dsn: str
    bootstrap_servers: str
    compose: DockerCompose

    @classmethod
    def start(cls, run: Path) -> Containers:
        """Start both and wait until they are healthy; `run` is the run's directory."""
        ports = [Reservation(), Reservation()]
        postgres, kafka = (reserved.port for reserved in ports)
        password = secrets.token_urlsafe(16)
        settings = run / "compose.env"
        settings.touch(mode=0o600)
        settings.write_text(
            f"COMPOSE_PROJECT_NAME={run.name.lower()}\n"
            f"OUTBOX_POSTGRES_PASSWORD={password}\n"
            f"OUTBOX_POSTGRES_PORT={postgres}\n"
            f"OUTBOX_KAFKA_PORT={kafka}\n"
        )
        for reserved in ports:
            reserved.release()
        file = str(files("outbox_local.stack") / "compose.yml")
        compose = DockerCompose(run, compose_file_name=file, env_file=str(settings))
        compose.start()
        return cls(
            dsn=f"postgresql://postgres:{password}@{LOOPBACK}:{postgres}/outbox",
            bootstrap_servers=f"{LOOPBACK}:{kafka}",
            compose=compose,
        )

    def stop(self) -> None:
        """Remove the containers and their volumes."""
        self.compose.stop()
