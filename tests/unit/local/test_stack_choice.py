"""Which server is used is one decision over what was given, wanted and found: its whole table."""

from __future__ import annotations

import pytest

from outbox_local.stack.choice import AllowedOrigins, Choice, Kind, choose
from outbox_relay.downloads.errors import StackError
from outbox_relay.downloads.java import Probe

ENGINE = Probe(found="the Docker engine 28.1 answers")
NO_ENGINE = Probe(missing="no Docker engine replies")
JAVA = Probe(found="Java 17.0.15 found at /usr/bin/java")
NO_JAVA = Probe(missing="no Java on this machine")
WHEEL = "Java 21 from a wheel"


@pytest.mark.parametrize(
    ("given", "origins", "docker", "machine", "chosen"),
    [
        # What is given wins over all that could be found, and over all that is origins.
        ("a DSN", AllowedOrigins.AUTO, ENGINE, JAVA, Choice(Kind.GIVEN, "a DSN is given")),
        ("a DSN", AllowedOrigins.DOCKER, NO_ENGINE, NO_JAVA, Choice(Kind.GIVEN, "a DSN is given")),
        ("a DSN", AllowedOrigins.WHEELS, NO_ENGINE, JAVA, Choice(Kind.GIVEN, "a DSN is given")),
        # Then Docker, if an engine answers.
        ("", AllowedOrigins.AUTO, ENGINE, JAVA, Choice(Kind.DOCKER, ENGINE.found)),
        ("", AllowedOrigins.AUTO, ENGINE, NO_JAVA, Choice(Kind.DOCKER, ENGINE.found)),
        ("", AllowedOrigins.DOCKER, ENGINE, JAVA, Choice(Kind.DOCKER, ENGINE.found)),
        # Then the machine's own programs.
        (
            "",
            AllowedOrigins.AUTO,
            NO_ENGINE,
            JAVA,
            Choice(Kind.MACHINE, f"{NO_ENGINE.missing}; {JAVA.found}"),
        ),
        (
            "",
            AllowedOrigins.EMBEDDED,
            ENGINE,
            JAVA,
            Choice(Kind.MACHINE, f"embedded servers are demanded; {JAVA.found}"),
        ),
        # Then the wheel.
        (
            "",
            AllowedOrigins.AUTO,
            NO_ENGINE,
            NO_JAVA,
            Choice(Kind.WHEEL, f"{NO_ENGINE.missing}; {NO_JAVA.missing}, so {WHEEL}"),
        ),
        (
            *("", AllowedOrigins.EMBEDDED, ENGINE, NO_JAVA),
            Choice(Kind.WHEEL, f"embedded servers are demanded; {NO_JAVA.missing}, so {WHEEL}"),
        ),
        ("", AllowedOrigins.WHEELS, ENGINE, JAVA, Choice(Kind.WHEEL, f"wheels are demanded: {WHEEL}")),
    ],
)
def test_the_first_origin_that_is_allowed_and_there_is_chosen_and_says_why(
    given: str, origins: AllowedOrigins, docker: Probe, machine: Probe, chosen: Choice
) -> None:
    assert choose(given=given, origins=origins, docker=docker, machine=machine, wheel=WHEEL) == chosen


def test_docker_demanded_without_an_engine_is_refused_with_the_reason() -> None:
    with pytest.raises(StackError, match=r"Docker is demanded, but no Docker engine replies: .* --from auto"):
        choose(given="", origins=AllowedOrigins.DOCKER, docker=NO_ENGINE, machine=JAVA, wheel=WHEEL)
