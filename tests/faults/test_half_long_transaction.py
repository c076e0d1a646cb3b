"""A local transaction of a minute, beside a checker that would roll it back after half a second."""

from __future__ import annotations

import time

import pytest

from tests.integration.library.test_half_long_transaction import hold_two


@pytest.mark.long
@pytest.mark.feature("S-42")
def test_a_local_transaction_of_60_s_is_not_rolled_back_under_its_feet(database: str) -> None:
    """A lock is looked at again about every second; seventy looks take longer than 60 s."""
    began = time.monotonic()
    hold_two(database, looks=70)
    assert time.monotonic() - began >= 60
