"""Which server is used and why: one pure function over what was given, allowed and found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from outbox_relay.downloads.errors import StackError
from outbox_relay.downloads.java import Probe


class Kind(StrEnum):
    """Where a server of the stack comes from, in the order of preference."""

    GIVEN = "given"
    """Somebody else's server, named by its address; never started or stopped by us."""
    DOCKER = "docker"
    """A container, through Docker compose."""
    MACHINE = "machine"
    """A process of ours, running programs that the machine has."""
    WHEEL = "wheel"
    """A process of ours, running programs out of a Python wheel."""

    @property
    def embedded(self) -> bool:
        """Return whether the server is a process of ours."""
        return self in (Kind.MACHINE, Kind.WHEEL)


class AllowedOrigins(StrEnum):
    """What the caller allows (`--from`, OUTBOX_STACK_FROM)."""

    AUTO = "auto"
    DOCKER = "docker"
    EMBEDDED = "embedded"
    WHEELS = "wheels"


ORIGINS = {
    AllowedOrigins.AUTO: (Kind.DOCKER, Kind.MACHINE, Kind.WHEEL),
    AllowedOrigins.DOCKER: (Kind.DOCKER,),
    AllowedOrigins.EMBEDDED: (Kind.MACHINE, Kind.WHEEL),
    AllowedOrigins.WHEELS: (Kind.WHEEL,),
}
"""Which origins each value allows for a server that is not given."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A server's origin and the reason, one sentence for people."""

    kind: Kind
    reason: str


def choose(*, given: str, origins: AllowedOrigins, docker: Probe, machine: Probe, wheel: str) -> Choice:
    """Choose where one server comes from: given → Docker → the machine's own programs → a wheel.

    `given` is what named the server's address ("" if nothing did), `wheel` describes what the wheel holds.
    Raises StackError when Docker is demanded and no engine replies. A given address wins over everything: it
    is the most explicit choice.
    """
    if given:
        return Choice(Kind.GIVEN, f"{given} is given")
    if origins is AllowedOrigins.DOCKER and not docker:
        raise StackError(f"Docker is demanded, but {docker.missing}: start the engine, or allow --from auto")
    if origins in (AllowedOrigins.AUTO, AllowedOrigins.DOCKER) and docker:
        return Choice(Kind.DOCKER, docker.found)
    if origins is AllowedOrigins.WHEELS:
        return Choice(Kind.WHEEL, f"wheels are demanded: {wheel}")
    why = docker.missing if origins is AllowedOrigins.AUTO else "embedded servers are demanded"
    if machine:
        return Choice(Kind.MACHINE, f"{why}; {machine.found}")
    return Choice(Kind.WHEEL, f"{why}; {machine.missing}, so {wheel}")
