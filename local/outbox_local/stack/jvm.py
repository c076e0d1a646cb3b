"""How Kafka's Java programs are run: heap, log settings, and an archive of loaded classes that shortens a start.

Measured on 4 cores with Java 17: a broker starts in 1.7 s with the archive, in 2.9 s without. Writing it
takes 3 s, once, when the first broker of a machine is shut down.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

from outbox_relay.downloads.cache import cache_directory
from outbox_relay.downloads.jars import cache_name

HEAP = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC")


def java_command(java: str, library: str, main: str, *arguments: str | Path) -> list[str | Path]:
    """Run a main class of the jars in `library`."""
    logging = files("outbox_local.stack") / "log4j2.properties"
    return [java, *HEAP, f"-Dlog4j2.configurationFile={logging}", "-cp", f"{library}/*", main, *arguments]


class ClassArchive:
    """The archive of classes that a broker loads, one per Java in the cache."""

    def __init__(self, java: str) -> None:
        """Name the archive of this Java. One that does not fit after all is refused by Java itself, silently."""
        program = Path(java).resolve()
        identity = hashlib.sha256(f"{program} {program.stat().st_mtime_ns}".encode()).hexdigest()[:8]
        self.path = cache_directory() / f"{cache_name()}-{identity}.jsa"

    def flags(self, part: Path) -> list[str]:
        """Use the archive, or write it to `part` at the end of the run that is about to start."""
        if self.path.exists():
            return [f"-XX:SharedArchiveFile={self.path}"]
        return [f"-XX:ArchiveClassesAtExit={part}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]

    def take(self, part: Path) -> None:
        """Put what a cleanly ended run wrote into the cache, in one rename: a part of an archive could crash Java."""
        if part.exists():
            copy = self.path.with_suffix(f".{part.stat().st_ino}")
            copy.write_bytes(part.read_bytes())  # the cache may lie on another file system
            copy.rename(self.path)
            part.unlink()
