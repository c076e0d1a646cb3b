"""Waiting tells what did not come true."""

from __future__ import annotations

import pytest

from tests.support.waiting import wait_until


def test_wait_returns_the_first_true_answer() -> None:
    answers = iter([None, 0, 3])
    assert wait_until(lambda: next(answers), "a number") == 3


def test_wait_names_what_did_not_come_true() -> None:
    with pytest.raises(AssertionError, match=r"within 0\.03 s: the relay is up"):
        wait_until(lambda: False, "the relay is up", seconds=0.03)
