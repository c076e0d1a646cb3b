"""A warehouse that is none, or another's, or out of reach: refused in one line, and left as it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from outbox_etl.options.dsn import parse
from outbox_etl.options.settings import Settings
from outbox_etl.session import use_catalog
from outbox_etl.warehouse.manifest import Manifest
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.export_runs import NOWHERE
from tests.support.memory_disks import mounted
from tests.support.refused_jobs import SECRET, Job, MakeWorld
from tests.support.spark_marks import MARKS

pytestmark = MARKS


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory in which nobody can write: to root only a file system says no."""
    place = tmp_path / "read-only"
    if os.geteuid():
        place.mkdir(0o555)
        yield place
        return
    with mounted(place, "ro,size=64k"):
        yield place


def content(place: Path) -> dict[str, bytes]:
    """All files below a place."""
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_iceberg_tables_that_others_made_are_refused_and_left_as_they_are(
    job: Job, small_spark: SparkSession, make_world: MakeWorld, tmp_path: Path
) -> None:
    world = make_world()
    place = tmp_path / "theirs"
    theirs = small_spark.newSession()
    use_catalog(theirs, Settings(parse(NOWHERE), str(place)))
    given = (*world.given[:2], "--warehouse", str(place))
    theirs.sql("CREATE TABLE outbox.outbox.message_history (id int, note string) USING iceberg")
    theirs.sql("INSERT INTO outbox.outbox.message_history VALUES (1, 'ours')")
    before = content(place)
    job.refuses(
        "run", *given, kind="TargetError",
        words=("message_history is another table", "column id is int", "bigint", "--warehouse"),
    )  # fmt: skip
    assert content(place) == before

    # The columns of an export, and rows that none wrote.
    theirs.sql("DROP TABLE outbox.outbox.message_history")
    theirs.sql(f"CREATE TABLE outbox.outbox.message_history ({MESSAGE_HISTORY.schema}) USING iceberg")
    names = ", ".join(f"`{name}`" for name in MESSAGE_HISTORY.names)
    values = ", ".join(f"CAST(NULL AS {column.type})" for column in MESSAGE_HISTORY.columns)
    theirs.sql(f"INSERT INTO outbox.outbox.message_history ({names}) VALUES ({values})")
    job.refuses("status", *given, kind="TargetError", words=("rows and no watermark", "--warehouse"))
    job.refuses("run", *given, kind="TargetError", words=("the other tables have rows", "--warehouse"))
    assert theirs.table("outbox.outbox.message_history").count() == 1


def test_a_place_that_holds_something_else_is_refused_and_left_as_it_is(
    job: Job, make_world: MakeWorld, tmp_path: Path
) -> None:
    world = make_world()
    place = world.place
    place.mkdir()
    (place / "thesis.txt").write_text("years of work")
    job.refuses("run", *world.given, kind="TargetError", words=(str(place), "thesis.txt", "--warehouse"))
    assert content(place) == {str(place / "thesis.txt"): b"years of work"}
    (place / "thesis.txt").unlink()

    (place / "_manifests").mkdir()
    manifest = place / "_manifests" / "000000000001.json"
    for text, word in (
        ('{"files": []}', "not a manifest of this job"),
        ("[]", "not a manifest of this job"),
        ("\xff", "not a manifest of this job"),
        ('{"format": 9}', "format 9, expected 1"),
    ):
        manifest.write_text(text, encoding="latin-1")
        before = content(place)
        kind = "TargetError" if "9" in text else "DamagedError"
        job.refuses("run", *world.given, kind=kind, words=(str(manifest), word))
        assert content(place) == before

    file = tmp_path / "file"
    file.write_text("mine")
    for form in ("parquet", "iceberg"):
        given = (*world.given[:2], "--warehouse", str(file / "below"), "--format", form)
        job.refuses("run", *given, kind="SettingsError", words=(str(file), "is a file", "--warehouse"))
    assert file.read_text() == "mine"


def test_a_warehouse_of_another_cluster_is_not_continued(job: Job, make_world: MakeWorld) -> None:
    world = make_world()
    job.succeeds("run", *world.given)
    before = world.history()
    newest = sorted((world.place / "_manifests").glob("*.json"))[-1]
    manifest = Manifest.of(newest.read_bytes(), "")
    theirs = {**manifest.watermark, "outbox.system-identifier": "7000000000000000001"}
    newest.write_text(Manifest(manifest.version, theirs, manifest.tables).text())
    world.happens()
    for command in ("run", "backfill"):
        job.refuses(
            command, *world.given, kind="OtherClusterError",
            words=("7000000000000000001", "outbox etl backfill --rebase", "nothing is deleted"),
        )  # fmt: skip
    assert world.history() == before
    job.succeeds("backfill", "--rebase", *world.given)
    world.is_true()


@pytest.mark.parametrize("form", ["parquet", "iceberg"])
def test_two_databases_of_a_cluster_do_not_fill_one_warehouse(
    job: Job, make_world: MakeWorld, form: str
) -> None:
    ours = make_world(form)
    job.succeeds("run", *ours.given)
    theirs = make_world(form, place=ours.place)
    for command in ("run", "backfill", "maintain"):
        job.refuses(command, *theirs.given, kind="OtherClusterError", words=("database",))
    ours.happens()
    job.succeeds("run", *ours.given)
    ours.is_true()


@pytest.mark.parametrize("form", ["parquet", "iceberg"])
def test_a_place_that_cannot_be_written_is_refused(
    job: Job, make_world: MakeWorld, read_only: Path, form: str
) -> None:
    world = make_world()
    given = (*world.given[:2], "--warehouse", str(read_only / "w"), "--format", form)
    job.refuses("run", *given, kind="TargetError", words=(str(read_only), "--warehouse"))


def test_a_catalog_that_is_wrong_or_does_not_answer_is_named(
    job: Job, make_world: MakeWorld, tmp_path: Path
) -> None:
    world = make_world()
    given = (*world.given[:2], "--warehouse", str(tmp_path / "w"))
    for dsn, word in (
        (f"postgresql://etl:{SECRET}@127.0.0.1:1/none", "127.0.0.1:1 refused"),
        (world.dsn.rpartition("/")[0] + "/no_such_database", 'database "no_such_database" does not exist'),
    ):
        job.refuses(
            "run",
            *given,
            "--catalog",
            "jdbc",
            "--catalog-uri",
            dsn,
            kind="CatalogError",
            words=(word, "--catalog-uri"),
        )
    job.refuses(
        "run", *given, "--catalog", "rest", "--catalog-uri", "http://127.0.0.1:1",
        "--catalog-option", f"token={SECRET}",
        kind="CatalogError", words=("127.0.0.1:1", "--catalog-uri"),
    )  # fmt: skip


@pytest.mark.parametrize("form", ["parquet", "iceberg"])
def test_a_file_system_that_nobody_knows_is_named(job: Job, make_world: MakeWorld, form: str) -> None:
    world = make_world()
    given = (*world.given[:2], "--format", form, "--warehouse")
    job.refuses(
        "run", *given, "gopher://there/w", kind="SettingsError", words=("gopher", "hdfs://", "--jars")
    )
    job.refuses("run", *given, "s3a://bucket/w", kind="SettingsError", words=("hadoop.fs.s3a.S3A", "--jars"))
