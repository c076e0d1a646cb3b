"""What an index shows of the distribution, as far as the sources state it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_classifiers_name_each_python_from_the_oldest_on() -> None:
    named = [
        int(found[1])
        for each in PROJECT["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", each))
    ]
    oldest = int(PROJECT["requires-python"].removeprefix(">=3."))
    assert named == list(range(oldest, max(named) + 1))


def test_no_python_is_shut_out_in_advance() -> None:
    # An upper limit cannot be taken back from what is published, and a resolver then chooses an older release.
    assert "<" not in PROJECT["requires-python"]


def test_warnings_of_a_later_python_are_errors_in_our_tests() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
    assert "error" in settings["ini_options"]["filterwarnings"]
