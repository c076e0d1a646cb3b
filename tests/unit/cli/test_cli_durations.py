"""Durations as operators write and read them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outbox_relay.text.durations import DurationError, duration, short


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("10m", 600),
        ("10 min", 600),
        ("1.5h", 5400),
        ("3d", 259_200),
        (" 1w ", 604_800),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert duration("--x", text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "10", "-5s", "1e3s", "5 years", "٣s", "99999w", "1h30min"])
def test_anything_else_is_refused_with_the_option_and_examples(text: str) -> None:
    with pytest.raises(DurationError, match=r"--x .* is not a duration; expected a span such as 500ms, 30s"):
        duration("--x", text)


@pytest.mark.parametrize(
    "text", ["0s", "1ms", "500ms", "1.5s", "6s", "90s", "10min", "72min", "12h", "36h", "3d", "2w"]
)
def test_what_is_written_short_reads_the_same(text: str) -> None:
    value = duration("--x", text)
    assert duration("--x", short(value)) == value
    assert short(value) == text
