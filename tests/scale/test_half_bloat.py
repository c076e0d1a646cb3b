"""A flood of undecided messages, each asked about 15 times: outbox.message stays as it was."""

from __future__ import annotations

import pytest

from tests.integration.library.test_half_bloat import check_often

COUNT = 100_000


@pytest.mark.scale
@pytest.mark.feature("S-43", "S-57")
def test_100_000_half_messages_checked_15_times_grow_the_table_at_most_5_percent(
    database: str,
) -> None:
    before, after, checks = check_often(database, COUNT)
    told = f"{checks:,} checks: {before} before, {after} after, in bytes"
    assert after.message <= before.message * 1.05, told
    assert (after.event - before.event) / checks < 400, told
