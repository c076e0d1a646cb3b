"""A certificate names the state that was verified; whatever removes something of it since then is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.manifest import ManifestContent

from outbox_etl.warehouse import avro
from outbox_etl.warehouse.evidence import Doubt
from outbox_etl.warehouse.tables import CORE
from outbox_etl.warehouse.witness import Witness
from tests.support.plain_warehouses import PlainIceberg, PlainWarehouse

RANGE = (1, 1_001)
NAMES = [table.name for table in CORE]


@pytest.fixture
def iceberg(tmp_path: Path) -> PlainIceberg:
    return PlainIceberg(tmp_path / "warehouse")


@pytest.fixture
def parquet(tmp_path: Path) -> PlainWarehouse:
    warehouse = PlainWarehouse(tmp_path / "warehouse")
    warehouse.add(1, 10)
    return warehouse


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("name", NAMES)
def test_a_table_that_only_grew_since_holds_what_was_verified(iceberg: PlainIceberg, name: str) -> None:
    told = iceberg.evidence()
    assert Witness().doubt(told, RANGE) is None
    iceberg.add(name, 11, 10)
    iceberg.remove(name, 11, signed=True)  # as a merge of the job does, which writes the row again
    iceberg.add(name, 21, 1)
    assert Witness().doubt(told, RANGE) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_commit_of_somebody_else_that_removes_a_row_is_found(iceberg: PlainIceberg, name: str) -> None:
    told = iceberg.evidence()
    iceberg.remove(name, 3, signed=False)
    iceberg.add(name, 11, 10)
    found = Witness().doubt(told, RANGE)
    assert found is not None
    assert found.is_loss
    assert f"of {name} removed or changed rows" in found.text


@pytest.mark.parametrize("name", NAMES)
def test_a_table_that_was_rolled_back_is_found_though_it_grew_again(iceberg: PlainIceberg, name: str) -> None:
    old = iceberg.tables[name].current_snapshot()
    iceberg.add(name, 11, 10)
    told = iceberg.evidence()
    assert old is not None
    iceberg.roll_back(name, old.snapshot_id)
    assert "rolled back" in str(Witness().doubt(told, RANGE))
    iceberg.add(name, 11, 10)
    assert "rolled back" in str(Witness().doubt(told, RANGE))


@pytest.mark.parametrize("name", NAMES)
def test_a_table_restored_from_an_older_backup_is_found(
    iceberg: PlainIceberg, name: str, tmp_path: Path
) -> None:
    shutil.copytree(iceberg.folder(name), tmp_path / "backup")
    iceberg.add(name, 11, 10)
    told = iceberg.evidence()
    shutil.rmtree(iceberg.folder(name))
    shutil.copytree(tmp_path / "backup", iceberg.folder(name))
    found = Witness().doubt(told, RANGE)
    assert found is not None
    assert found.is_loss
    assert f"{name} was rolled back or restored" in found.text


def test_another_table_at_the_same_place_is_found(iceberg: PlainIceberg, tmp_path: Path) -> None:
    told = iceberg.evidence()
    shutil.rmtree(iceberg.root)
    assert "No such file" in str(Witness().doubt(told, RANGE))
    PlainIceberg(iceberg.root)
    assert "is another table" in str(Witness().doubt(told, RANGE))


def test_an_expired_snapshot_is_no_loss_but_proves_nothing(iceberg: PlainIceberg) -> None:
    told = iceberg.evidence()
    for first in (11, 21):
        iceberg.add("publications", first, 10)
    newest = sorted(iceberg.folder("publications").glob("v*.metadata.json"))[-1]
    metadata = json.loads(newest.read_text())
    *expired, then, now = metadata["snapshots"]
    newest.write_text(json.dumps({**metadata, "snapshots": [then, now]}))
    assert Witness().doubt(told, RANGE) is None, "the oldest that is there names it as its parent"
    newest.write_text(json.dumps({**metadata, "snapshots": [now]}))
    assert [each["snapshot-id"] for each in expired] == [told["tables"]["publications"]["snapshot"]]
    found = Witness().doubt(told, RANGE)
    assert found is not None
    assert not found.is_loss
    assert "has expired" in found.text


@pytest.mark.parametrize(("spoil", "said"), [(Path.unlink, "is gone"), (cut, "not as long as")])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_the_range_that_is_gone_or_cut_off_is_found(
    iceberg: PlainIceberg, name: str, spoil: Callable[[Path], None], said: str
) -> None:
    iceberg.add(name, 5_000, 10)
    told = iceberg.evidence()
    [ours] = set(iceberg.files(name)) - set(iceberg.files(name, of="5000"))
    spoil(ours)
    assert said in str(Witness().doubt(told, RANGE))
    assert Witness().doubt(told, (4_000, 6_000)) is None, "the files of another range are there"


def test_a_manifest_that_is_gone_is_found(iceberg: PlainIceberg) -> None:
    told = iceberg.evidence()
    for path in iceberg.folder("message_history").glob("*-m0.avro"):
        path.unlink()
    assert "cannot be listed" in str(Witness().doubt(told, RANGE))


def test_manifests_are_read_as_pyiceberg_reads_them(iceberg: PlainIceberg) -> None:
    iceberg.add("publications", 11, 10)
    table = iceberg.tables["publications"]
    snapshot = table.current_snapshot()
    assert snapshot is not None
    for manifest in snapshot.manifests(table.io):
        assert manifest.content == ManifestContent.DATA
        ours = list(avro.records(Path(manifest.manifest_path.removeprefix("file://")).read_bytes()))
        theirs = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        assert [each["data_file"]["file_path"] for each in ours] == [
            each.data_file.file_path for each in theirs
        ]
        for mine, each in zip(ours, theirs, strict=True):
            bounds = {one["key"]: one["value"] for one in mine["data_file"]["lower_bounds"]}
            assert bounds == dict(each.data_file.lower_bounds)
            assert mine["data_file"]["file_size_in_bytes"] == each.data_file.file_size_in_bytes


@pytest.mark.parametrize("size", [0, 3, 30, -20])
def test_a_manifest_that_is_cut_off_is_an_error(iceberg: PlainIceberg, size: int) -> None:
    [path, *_] = iceberg.folder("publications").glob("*-m0.avro")
    with pytest.raises(ValueError, match=r"."):
        list(avro.records(path.read_bytes()[:size]))


def test_a_parquet_warehouse_that_only_grew_holds_what_was_verified(parquet: PlainWarehouse) -> None:
    told = parquet.evidence()
    assert Witness().doubt(told, RANGE) is None
    parquet.add(11, 10)
    assert Witness().doubt(told, RANGE) is None


def test_an_older_manifest_is_found_though_it_grew_again(parquet: PlainWarehouse) -> None:
    before = parquet.now
    parquet.add(11, 10)
    told = parquet.evidence()
    manifests = parquet.root / "_manifests"
    sorted(manifests.iterdir())[-1].unlink()
    assert "it is an older state" in str(Witness().doubt(told, RANGE))
    parquet.now = before
    parquet.add(2_000, 10)
    assert "it was restored" in str(Witness().doubt(told, RANGE))
    parquet.add(2_010, 10)
    assert "it was restored" in str(Witness().doubt(told, RANGE))
    (manifests / f"{told['version']:012d}.json").unlink()
    assert Witness().doubt(told, RANGE) == Doubt(
        f"manifest {told['version']}, which was verified, has expired: what became of its rows is not known",
        is_loss=False,
    )


def test_a_manifest_with_fewer_messages_is_found(parquet: PlainWarehouse) -> None:
    told = parquet.evidence()
    parquet.commit()
    assert "0 messages, and 10 were verified" in str(Witness().doubt(told, RANGE))


@pytest.mark.parametrize("spoil", [Path.unlink, cut])
def test_a_parquet_file_that_is_gone_or_cut_off_is_found(
    parquet: PlainWarehouse, spoil: Callable[[Path], None]
) -> None:
    path = parquet.add(5_000, 10)
    told = parquet.evidence()
    spoil(path)
    assert "the file" in str(Witness().doubt(told, (4_000, 6_000)))
    assert Witness().doubt(told, RANGE) is None


def test_a_byte_that_changed_in_a_file_of_the_range_is_found(parquet: PlainWarehouse) -> None:
    path = parquet.add(5_000, 10)
    told, content = parquet.evidence(), bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    assert "is damaged" in str(Witness().doubt(told, (4_000, 6_000)))
    assert Witness().doubt(told, RANGE) is None


@pytest.mark.parametrize("told", [{}, {"format": "orc"}, {"format": "iceberg", "tables": 7}])
def test_evidence_that_cannot_be_read_vouches_for_nothing(told: dict[str, object]) -> None:
    found = Witness().doubt(told, RANGE)
    assert found is not None
    assert "cannot be read" in found.text
