"""Find what this machine has: a Docker engine that responds, and PostgreSQL programs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from outbox_local.stack.users import ServiceUser, reaches
from outbox_relay.downloads.java import PROGRAM_LIMIT, Probe, Program, output_of, version_in

OLDEST_POSTGRES = 14
"""xid8 and pg_snapshot as the schema uses them."""
DOCKER_LIMIT = 2.0
"""Seconds that a Docker engine has to answer."""
_DEBIAN = Path("/usr/lib/postgresql")


def docker() -> Probe:
    """Ask the Docker engine for its version. The client alone proves nothing: it is often there without an engine."""
    engine = output_of(["docker", "version", "--format", "{{.Server.Version}}"], DOCKER_LIMIT)
    if engine is None:
        return Probe(missing="no Docker engine replies")
    if output_of(["docker", "compose", "version", "--short"], DOCKER_LIMIT) is None:
        return Probe(missing=f"the Docker engine {engine.strip()} has no compose plugin")
    return Probe(found=f"the Docker engine {engine.strip()} replies")


def postgres(user: ServiceUser | None) -> Program:
    """Find the newest PostgreSQL with `initdb` and `postgres` that the user who will run it can execute."""
    best: tuple[int, str, Path] | None = None
    problem = "no PostgreSQL server programs on this machine"
    for directory in dict.fromkeys(_postgres_directories()):
        if not all((directory / name).is_file() for name in ("initdb", "postgres")):
            continue
        version = postgres_version(directory)
        if version is None:
            continue
        major = int(version.split(".")[0])
        if major < OLDEST_POSTGRES:
            problem = f"PostgreSQL {version} in {directory} is older than {OLDEST_POSTGRES}"
        elif not reaches(user, directory / "postgres"):
            who = user.name if user else "this user"
            problem = f"PostgreSQL {version} lies in {directory}, where {who} cannot reach it"
        elif best is None or major > best[0]:
            best = (major, version, directory)
    if best is None:
        return Program(None, Probe(missing=problem))
    return Program(best[2], Probe(found=f"PostgreSQL {best[1]} found in {best[2]}"))


def postgres_version(directory: Path) -> str | None:
    """Ask the PostgreSQL in a program directory for its version, such as "15.18"."""
    return version_in(output_of([str(directory / "postgres"), "--version"], PROGRAM_LIMIT))


def _postgres_directories() -> Iterator[Path]:
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    yield from sorted(_DEBIAN.glob("*/bin"))
    if config := shutil.which("pg_config"):
        told = output_of([config, "--bindir"], PROGRAM_LIMIT)
        if told:
            yield Path(told.strip())
