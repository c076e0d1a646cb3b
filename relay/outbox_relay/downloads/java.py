"""Find a Java on this machine that is new enough for Kafka and Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

OLDEST_JAVA = 17
"""Kafka 4 needs this version."""
PROGRAM_LIMIT = 20.0
"""Seconds that a program may take to report its version."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of a search for a program: what was found, or what is missing."""

    found: str = ""
    missing: str = ""

    def __bool__(self) -> bool:
        """Whether the program can be used."""
        return bool(self.found)


@dataclass(frozen=True, slots=True)
class Program:
    """A program directory or executable, and the result of the search for it."""

    path: Path | None
    probe: Probe


def find_java() -> Program:
    """Find a Java that runs Kafka: first $JAVA_HOME, then the PATH. Run it to read its version."""
    problem = "no Java on this machine"
    for program in _java_programs():
        version = version_in(output_of([str(program), "-version"], PROGRAM_LIMIT))
        if version is None:
            continue
        if int(version.split(".")[0]) >= OLDEST_JAVA:
            return Program(program, Probe(found=f"Java {version} found at {program}"))
        problem = f"Java {version} at {program} is older than {OLDEST_JAVA}"
    return Program(None, Probe(missing=problem))


def _java_programs() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)


def output_of(command: Sequence[str], limit: float) -> str | None:
    """Run a program and return its output; None if it is missing, fails or runs for longer than `limit` seconds."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def version_in(text: str | None) -> str | None:
    """Find the version in a program's output: `postgres (PostgreSQL) 15.14`, `openjdk version "17.0.15"`, `1.8.0`."""
    found = re.search(r'(?:\(PostgreSQL\) |version ")(\d+(?:[.\d]*\d)?)', text or "")
    return found.group(1) if found else None
