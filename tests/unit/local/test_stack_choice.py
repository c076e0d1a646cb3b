"""Which server is used is one decision over what was given, wanted and found: its whole table."""

from __future__ import annotations

import pytest

from outbox_local.stack.choice import Choice, Kind, Wanted, choose
from outbox_relay.downloads.errors import StackError
from outbox_relay.downloads.java import Probe

ENGINE = Probe(found="the Docker engine 28.1 answers")
NO_ENGINE = Probe(missing="no Docker engine answers")
JAVA = Probe(found="Java 17.0.15 found at /usr/bin/java")
NO_JAVA = Probe(missing="no Java on this machine")
WHEEL = "Java 21 from a wheel"


@pytest.mark.parametrize(
    ("given", "wanted", "docker", "machine", "chosen"),
    [
        # What is given wins over all that could be found, and over all that is wanted.
        ("a DSN", Wanted.AUTO, ENGINE, JAVA, Choice(Kind.GIVEN, "a DSN is given")),
        ("a DSN", Wanted.DOCKER, NO_ENGINE, NO_JAVA, Choice(Kind.GIVEN, "a DSN is given")),
        ("a DSN", Wanted.WHEELS, NO_ENGINE, JAVA, Choice(Kind.GIVEN, "a DSN is given")),
        # Then Docker, if an engine answers.
        ("", Wanted.AUTO, ENGINE, JAVA, Choice(Kind.DOCKER, ENGINE.found)),
        ("", Wanted.AUTO, ENGINE, NO_JAVA, Choice(Kind.DOCKER, ENGINE.found)),
        ("", Wanted.DOCKER, ENGINE, JAVA, Choice(Kind.DOCKER, ENGINE.found)),
        # Then the machine's own programs.
        ("", Wanted.AUTO, NO_ENGINE, JAVA, Choice(Kind.MACHINE, f"{NO_ENGINE.missing}; {JAVA.found}")),
        (
            "",
            Wanted.EMBEDDED,
            ENGINE,
            JAVA,
            Choice(Kind.MACHINE, f"embedded servers are demanded; {JAVA.found}"),
        ),
        # Then the wheel.
        (
            "",
            Wanted.AUTO,
            NO_ENGINE,
            NO_JAVA,
            Choice(Kind.WHEEL, f"{NO_ENGINE.missing}; {NO_JAVA.missing}, so {WHEEL}"),
        ),
        (
            *("", Wanted.EMBEDDED, ENGINE, NO_JAVA),
            Choice(Kind.WHEEL, f"embedded servers are demanded; {NO_JAVA.missing}, so {WHEEL}"),
        ),
        ("", Wanted.WHEELS, ENGINE, JAVA, Choice(Kind.WHEEL, f"wheels are demanded: {WHEEL}")),
    ],
)
def test_the_first_origin_that_is_allowed_and_there_is_chosen_and_says_why(
    given: str, wanted: Wanted, docker: Probe, machine: Probe, chosen: Choice
) -> None:
    assert choose(given=given, wanted=wanted, docker=docker, machine=machine, wheel=WHEEL) == chosen


def test_docker_demanded_without_an_engine_is_refused_with_the_reason() -> None:
    with pytest.raises(StackError, match=r"Docker is demanded, but no Docker engine answers: .* --from auto"):
        choose(given="", wanted=Wanted.DOCKER, docker=NO_ENGINE, machine=JAVA, wheel=WHEEL)
