"""A run whose clock is ahead commits nothing, for its commits would stop all others until that time."""

from __future__ import annotations

import pytest

from outbox_etl.errors import SourceError, TargetError
from outbox_etl.source.clock import AHEAD_S, BEHIND_S, refuse_ahead, refuse_behind

NOW = 1_800_000_000.0


@pytest.mark.parametrize("machine", [NOW - 7_200, NOW, NOW + AHEAD_S])
def test_a_clock_that_is_right_or_behind_postgresql_runs(machine: float) -> None:
    refuse_ahead(machine, NOW)


def test_a_clock_ahead_of_postgresql_is_refused_with_both_times() -> None:
    with pytest.raises(
        SourceError, match=r"7200 s ahead .* 2027-01-15 10:00:00 UTC, .* 2027-01-15 08:00:00 UTC"
    ):
        refuse_ahead(NOW + 7_200, NOW)


def test_a_table_whose_last_commit_is_ahead_is_refused_before_iceberg_does() -> None:
    refuse_behind("publications", NOW + BEHIND_S, NOW)
    with pytest.raises(
        TargetError, match=r"publications is of 2027-01-15 10:00:00 UTC, .*shows 2027-01-15 08:00"
    ):
        refuse_behind("publications", NOW + 7_200, NOW)
