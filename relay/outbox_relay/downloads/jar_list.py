"""A pinned list of jars: which file of a Maven repository, and its hash."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the pinned list."""

    group: str
    artifact: str
    version: str
    sha256: str
    ending: str = field(default=".jar", repr=False)
    """The end of the file's name; not part of the repr, which names caches."""

    @property
    def file_name(self) -> str:
        """The name of the file, as every Maven repository calls it."""
        return f"{self.artifact}-{self.version}{self.ending}"

    @property
    def path(self) -> str:
        """The place of the file in every Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file_name}"


def listed(text: str) -> tuple[Jar, ...]:
    """Read a pinned list: lines of group:artifact:version sha256, and comments."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    rows = (line.replace(":", " ").split() for line in lines)
    return tuple(Jar(group, artifact, version, sha256) for group, artifact, version, sha256 in rows)
