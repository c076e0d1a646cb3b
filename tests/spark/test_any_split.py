"""Whatever happens to an outbox, and however its stream is split into runs that may die, the warehouse is the same."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from outbox_etl.warehouse import iceberg, iceberg_merge
from tests.support.export_runs import Exports, KilledError
from tests.support.message_streams import Stream, differences
from tests.support.spark_marks import MARKS, first_in_gate

pytestmark = MARKS
SEEDS = [int(seed) for seed in os.environ.get("OUTBOX_SPLIT_SEEDS", "1,2,3").split(",")]


@pytest.mark.feature("H-01")
@pytest.mark.parametrize("seed", first_in_gate(*SEEDS))
def test_any_split_into_runs_that_may_die_gives_the_same_tables(
    seed: int, database: str, make_exports: Callable[..., Exports], monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 3 != 1:
        monkeypatch.setattr(iceberg_merge, "MOST_CHANGES", 0)  # (as where Spark merges)
    if seed % 3 == 2:
        monkeypatch.setattr(iceberg, "WIDE", 0)  # (as where the changes of a window lie far apart)
    stream = Stream(database, seed)
    warehouses = [
        make_exports(database, "iceberg", format="iceberg"),
        make_exports(database, "parquet", format="parquet"),
    ]
    story = []
    for _ in range(6):
        story += [stream.step() for _ in range(stream.random.randint(3, 25))]
        for warehouse in warehouses:
            if stream.random.random() < 0.6:
                die_at, after = stream.random.randrange(4), stream.random.random() < 0.5
                story.append(f"{warehouse.settings.format} dies {'after' if after else 'before'} {die_at}")
                try:
                    warehouse.run(die_at=die_at, after=after)
                except KilledError:
                    continue
            if stream.random.random() < 0.5:
                story.append(f"{warehouse.settings.format} run")
                warehouse.run()
    stream.settle()
    truth = stream.truth()
    for warehouse in warehouses:
        warehouse.run()
        assert not (wrong := differences(warehouse.tables(), truth)), f"{story}\n{warehouse.said}\n{wrong}"
    stream.close()
