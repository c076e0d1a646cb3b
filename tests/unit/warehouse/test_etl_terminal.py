"""What the job writes to a terminal holds no control character and no password, whoever put it there."""

from __future__ import annotations

from typing import Any

import pytest

from outbox_etl import main
from outbox_etl.terminal import printable

SECRET = "s3cr3t-Pa55"
GIVEN = ("status", f"--dsn=postgresql://etl:{SECRET}@localhost/shop", "--warehouse=/w")
EVIL = "\x1b]0;owned\x07\N{RIGHT-TO-LEFT OVERRIDE}"


def test_control_characters_are_shown_as_escapes() -> None:
    assert printable("ünï 出") == "ünï 出"
    assert printable("a\x1b[2J\nb") == r"a\x1b[2J\nb"
    assert printable("a\x1b\n\tb", keep="\n\t") == "a\\x1b\n\tb"


def test_a_finding_cannot_speak_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "work", lambda *_: {"lines": [f"missing: {EVIL}", "proven"], "exit_code": 1})
    assert main.main(GIVEN) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(r"missing: \x1b]0;owned\x07")
    assert first.isprintable()
    assert second == "proven"


def test_progress_cannot_speak_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    main.say(f"topic {EVIL}")
    assert capsys.readouterr().err.removesuffix("\n").isprintable()


def test_the_traceback_of_a_defect_shows_no_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> dict[str, Any]:
        raise ZeroDivisionError(f"of {SECRET} by {EVIL}")

    monkeypatch.setattr(main, "work", fails)
    assert main.main(GIVEN) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last):\n")
    assert "ZeroDivisionError: of *** by \\x1b" in shown
    assert SECRET not in shown
    assert "\x1b" not in shown
