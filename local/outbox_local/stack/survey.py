"""What this machine has: a Docker engine that answers, PostgreSQL programs, a Java that is new enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outbox_local.stack.choice import Probe
from outbox_local.stack.users import ServiceUser, reaches

OLDEST_POSTGRES = 14
"""xid8 and pg_snapshot as the schema uses them."""
OLDEST_JAVA = 17
"""What Kafka 4 asks for."""
DOCKER_LIMIT = 2.0
"""Seconds that a Docker engine has to answer."""
_PROGRAM_LIMIT = 20.0
_DEBIAN = Path("/usr/lib/postgresql")


@dataclass(frozen=True, slots=True)
class Program:
    """A program directory or executable that was found, and the probe that tells of it."""

    path: Path | None
    probe: Probe


def docker() -> Probe:
    """Ask the Docker engine for its version. The client alone proves nothing: it is often there without an engine."""
    engine = _output(["docker", "version", "--format", "{{.Server.Version}}"], DOCKER_LIMIT)
    if engine is None:
        return Probe(missing="no Docker engine answers")
    if _output(["docker", "compose", "version", "--short"], DOCKER_LIMIT) is None:
        return Probe(missing=f"the Docker engine {engine.strip()} has no compose plugin")
    return Probe(found=f"the Docker engine {engine.strip()} answers")


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
    return _version(_output([str(directory / "postgres"), "--version"], _PROGRAM_LIMIT))


def java() -> Program:
    """Find a Java that runs Kafka: $JAVA_HOME, then the PATH; its version is asked, not guessed."""
    problem = "no Java on this machine"
    for program in _java_programs():
        version = _version(_output([str(program), "-version"], _PROGRAM_LIMIT))
        if version is None:
            continue
        if int(version.split(".")[0]) >= OLDEST_JAVA:
            return Program(program, Probe(found=f"Java {version} found at {program}"))
        problem = f"Java {version} at {program} is older than {OLDEST_JAVA}"
    return Program(None, Probe(missing=problem))


def _postgres_directories() -> Iterator[Path]:
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    yield from sorted(_DEBIAN.glob("*/bin"))
    if config := shutil.which("pg_config"):
        told = _output([config, "--bindir"], _PROGRAM_LIMIT)
        if told:
            yield Path(told.strip())


def _java_programs() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)


def _output(command: Sequence[str], limit: float) -> str | None:
    """Run a program and answer what it printed; None when it is not there, fails or takes longer than `limit`."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _version(text: str | None) -> str | None:
    """Find the version in what a program says: `postgres (PostgreSQL) 15.14`, `openjdk version "17.0.15"`, `1.8.0`."""
    found = re.search(r'(?:\(PostgreSQL\) |version ")(\d+(?:[.\d]*\d)?)', text or "")
    return found.group(1) if found else None
