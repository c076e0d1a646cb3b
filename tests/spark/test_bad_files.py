"""Files of a warehouse that are damaged or gone, and disks that are full: nothing is made worse."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.damaged_files import empty, flip, truncate
from tests.support.memory_disks import mounted
from tests.support.plain_inserts import connect, insert
from tests.support.refused_jobs import Job, MakeWorld
from tests.support.spark_marks import MARKS
from tests.support.stopped_lanes import set_aside

pytestmark = MARKS
HINT = "version-hint.text"
Damages = tuple[tuple[Callable[[Path], None], str], ...]


def files(place: Path, pattern: str) -> list[Path]:
    """Files of message_history, oldest first; never none."""
    found = sorted(place.glob(pattern), key=lambda path: (path.stat().st_mtime_ns, path.name))
    assert found, pattern
    return found


def content(place: Path) -> dict[str, bytes]:
    """What the table of messages is made of; which version counts is another question."""
    found = [path for path in place.rglob("message_history/**/*") if path.is_file()]
    return {str(path): path.read_bytes() for path in found if HINT not in path.name}


def current(place: Path) -> int | None:
    """The snapshot that readers of an Iceberg table see; a branch that was made and dropped leaves a version."""
    for hint in place.rglob(f"message_history/metadata/{HINT}"):
        text = (hint.parent / f"v{hint.read_text()}.metadata.json").read_text()
        return int(json.loads(text)["current-snapshot-id"])
    return None


@pytest.mark.parametrize(
    ("form", "damages"),
    [
        (
            "parquet",
            (
                (flip, "message_history/*/*.parquet"),
                (truncate, "message_history/*/*.parquet"),
                (empty, "message_history/*/*.parquet"),
                (Path.unlink, "message_history/*/*.parquet"),
                (flip, "_manifests/*.json"),
                (truncate, "_manifests/*.json"),
                (empty, "_manifests/*.json"),
            ),
        ),
        (
            "iceberg",
            (
                (flip, "outbox/message_history/data/*/*.parquet"),
                (empty, "outbox/message_history/data/*/*.parquet"),
                (truncate, "outbox/message_history/metadata/*.metadata.json"),
                (Path.unlink, "outbox/message_history/metadata/*.metadata.json"),
                (flip, "outbox/message_history/metadata/*-m?.avro"),
                (empty, "outbox/message_history/metadata/snap-*.avro"),
            ),
        ),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_written_until_it_is_back(
    job: Job, make_world: MakeWorld, tmp_path: Path, form: str, damages: Damages
) -> None:
    world = make_world(form)
    with connect(world.dsn) as conn:
        insert(conn, "t", "k", b"of the day that all files hold")
        number = conn.execute("SELECT max(id) FROM outbox.message").fetchall()[0][0]
        job.succeeds("run", *world.given)
        set_aside(conn, number)
    good, seen = tmp_path / "good", current(world.place)
    assert (seen is None) == (form == "parquet")
    shutil.copytree(world.place, good)
    for damage, pattern in damages:
        for path in files(world.place, pattern):
            damage(path)
        before = content(world.place)
        names = [path.name for path in files(good, pattern)]
        line = job.refuses("run", *world.given, kind="DamagedError", words=("backup", "--warehouse"))
        assert any(name in line for name in names), (damage, pattern, line)
        if "data" in pattern or "message_history/*/" in pattern:
            line = job.refuses("marts", *world.given, kind="DamagedError", words=("backup", "--warehouse"))
            assert any(name in line for name in names), (damage, pattern, line)
        assert content(world.place).keys() >= before.keys()
        assert {path: text for path, text in content(world.place).items() if path in before} == before
        if "metadata.json" not in pattern:
            assert current(world.place) == seen
        shutil.rmtree(world.place)
        shutil.copytree(good, world.place)
    job.succeeds("run", *world.given)
    world.is_true()


def test_a_parquet_warehouse_whose_manifests_are_lost_is_not_begun_anew(
    job: Job, make_world: MakeWorld
) -> None:
    world = make_world("parquet")
    job.succeeds("run", *world.given)
    for path in files(world.place, "_manifests/*.json"):
        path.unlink()
    job.refuses("run", *world.given, kind="TargetError", words=("no manifest", "_manifests", "backup"))
    assert not list(world.place.glob("_manifests/*.json"))


def test_an_iceberg_table_that_is_lost_is_not_begun_anew_beside_the_others(
    job: Job, make_world: MakeWorld
) -> None:
    world = make_world("iceberg")
    job.succeeds("run", *world.given)
    shutil.rmtree(world.place / "outbox" / "message_history")
    job.refuses(
        "run", *world.given, kind="TargetError", words=("outbox.message_history", "cannot be found", "backup")
    )
    assert not (world.place / "outbox" / "message_history").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB."""
    with mounted(tmp_path / "disk", "size=8m") as place:
        yield place


@pytest.mark.parametrize("form", ["parquet", "iceberg"])
def test_a_full_disk_leaves_nothing_partial_and_with_room_the_next_run_completes_it(
    job: Job, make_world: MakeWorld, small_disk: Path, form: str
) -> None:
    world = make_world(form, place=small_disk / "warehouse")
    job.succeeds("run", *world.given)
    before, mark = world.history(), job.succeeds("status", *world.given).answer["watermark"]
    ballast = small_disk / "ballast"
    world.happens()
    with connect(world.dsn) as conn:
        insert(conn, "t", "k", os.urandom(600_000))  # more than is left
    for room in (400_000, 60_000, 12_000, 0):  # of Iceberg's metadata some fits, or nothing
        ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - room))
        place = str(world.place)
        job.refuses("run", *world.given, kind="TargetError", words=("no space left", place, "run again"))
        assert job.succeeds("status", *world.given).answer["watermark"] == mark
        assert world.history(mark["hi"]) == before
        ballast.unlink()
    job.succeeds("run", *world.given)
    world.is_true()
