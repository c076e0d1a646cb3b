"""A warehouse with a damaged file is not judged: reconcile names the file, and certifies nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.damaged_files import empty, flip, truncate
from tests.support.recorded_by_hand import MakeWorld, Scene, World
from tests.support.refused_jobs import Job
from tests.support.servers import MakeTopic
from tests.support.spark_marks import MARKS

pytestmark = MARKS
DAMAGES = (
    ("message_history", flip),
    ("message_history", empty),
    ("publications", truncate),
    ("publications", Path.unlink),
)


def newest(world: World, table: str) -> Path:
    """The data file of a table that was written last."""
    found = [path for path in world.warehouse.rglob("*.parquet") if table in path.parts]
    return max(found, key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.parametrize("form", ["iceberg", "parquet"])
def test_a_damaged_file_is_named_and_nothing_is_certified_until_it_is_back(
    job: Job, module_worlds: MakeWorld, make_topic: MakeTopic, form: str
) -> None:
    world = module_worlds(form)
    scene = Scene(world, make_topic(partitions=1))
    given = [f"--dsn={world.dsn}", f"--warehouse={world.warehouse}", f"--format={form}"]
    given.append(f"--bootstrap-servers={world.bootstrap_servers}")
    scene.publish(scene.write(5))
    world.export()
    assert job.succeeds("reconcile", *given).answer["certified"]
    scene.publish(scene.write(5, start=5))
    world.export()
    before = world.certificates()
    for table, damage in DAMAGES:
        path = newest(world, table)
        good = path.read_bytes()
        damage(path)
        line = job.refuses("reconcile", *given, kind="DamagedError", words=("backup", "--warehouse"))
        assert path.name in line, (damage, line)
        assert world.certificates() == before
        path.write_bytes(good)
    assert job.succeeds("reconcile", *given).answer["certified"]
    assert len(world.certificates()) == len(before) + 1
