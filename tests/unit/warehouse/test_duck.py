"""DuckDB sees the rows of a table's files, and no file that it could mistake or that has changed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outbox_etl.warehouse.duck import Duck, UnreadableError
from outbox_etl.warehouse.files import ParquetFiles, checksums_of, is_sound, write_checksums
from outbox_etl.warehouse.mart_tables import DAYS
from outbox_etl.warehouse.tables import MESSAGE_HISTORY

IDS = "SELECT h.id FROM history h ORDER BY h.id"


@pytest.fixture
def duck() -> Iterator[Duck]:
    with closing(Duck(2)) as duck:
        yield duck


def file_of(place: Path, first: int, rows: int = 3) -> str:
    """A file of a history with these ids."""
    place.parent.mkdir(parents=True, exist_ok=True)
    kinds = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "binary": pa.binary()}
    names = [column for column in MESSAGE_HISTORY.columns if column.name != "id"]
    nothing = {
        column.name: pa.nulls(rows, kinds.get(column.type, pa.timestamp("us", "UTC"))) for column in names
    }
    pq.write_table(pa.table({"id": range(first, first + rows), **nothing}), place)
    return str(place)


def ids(duck: Duck) -> list[int]:
    found: list[int] = duck.ask(IDS)["id"].to_pylist()
    return found


def test_a_table_without_files_has_its_columns_and_no_row(duck: Duck) -> None:
    for name, table in (("history", MESSAGE_HISTORY), ("made", DAYS)):
        duck.view(name, table, ParquetFiles())
    assert ids(duck) == []
    assert duck.ask("SELECT max(m.day) AS day FROM made m").to_pylist() == [{"day": None}]


def test_deleted_rows_are_those_of_their_file(duck: Duck, tmp_path: Path) -> None:
    paths = [file_of(tmp_path / "born_at_day=2026-03-01" / f"it's {n}.parquet", 10 * n) for n in range(4)]
    marks = tmp_path / "deletes.parquet"
    deleted = [("b", 0), ("c", 2), ("c", 2), ("elsewhere", 1)]
    pq.write_table(
        pa.table({"file_path": [each for each, _ in deleted], "pos": [n for _, n in deleted]}), marks
    )
    files = ParquetFiles(paths[:2], {"c": paths[3], "b": paths[2]}, [str(marks)])
    duck.view("history", MESSAGE_HISTORY, files)
    assert ids(duck) == [0, 1, 2, 10, 11, 12, 21, 22, 30, 31]
    duck.view("history", MESSAGE_HISTORY, ParquetFiles(paths[1:2]))
    assert ids(duck) == [10, 11, 12]


@pytest.mark.parametrize("name", ["[a]", "{view}", "a?", "*"])
@pytest.mark.parametrize("kind", ["whole", "marked"])
def test_a_path_that_could_be_a_pattern_is_not_read(duck: Duck, name: str, kind: str) -> None:
    path = f"/warehouse/{name}/1.parquet"
    files = (
        ParquetFiles([path]) if kind == "whole" else ParquetFiles([], {"x": path}, ["/warehouse/2.parquet"])
    )
    with pytest.raises(UnreadableError, match="characters"):
        duck.view("history", MESSAGE_HISTORY, files)


def test_a_file_that_is_lost_or_changed_is_not_read(duck: Duck, tmp_path: Path) -> None:
    path = file_of(tmp_path / "1.parquet", 0)
    with pytest.raises(UnreadableError):
        duck.view("history", MESSAGE_HISTORY, ParquetFiles([path, f"{path}-lost"]))
    write_checksums(path)
    duck.view("history", MESSAGE_HISTORY, ParquetFiles([path]))
    assert ids(duck) == [0, 1, 2]


@pytest.mark.parametrize("at", [0, 8, -1])
def test_every_byte_of_the_checksums_counts(duck: Duck, tmp_path: Path, at: int) -> None:
    path = file_of(tmp_path / "1.parquet", 0, 1_000)
    assert is_sound(path)
    write_checksums(path)
    assert is_sound(path)
    sums = bytearray(checksums_of(path).read_bytes())
    sums[at] ^= 1
    checksums_of(path).write_bytes(sums)
    assert not is_sound(path)
    with pytest.raises(UnreadableError, match="checksums"):
        duck.view("history", MESSAGE_HISTORY, ParquetFiles([path]))


def test_an_error_shows_no_value(duck: Duck) -> None:
    with pytest.raises(UnreadableError) as raised:
        duck.ask("SELECT CAST('secret' AS BIGINT) AS id")
    assert str(raised.value) == "ConversionException"


def test_checksums_are_those_of_hadoop(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5
    path = tmp_path / "file.parquet"
    path.write_bytes(content)
    write_checksums(str(path))
    sums = [zlib.crc32(content[at : at + 512]) for at in (0, 512, 1_024)]
    assert (tmp_path / ".file.parquet.crc").read_bytes() == b"crc\0" + struct.pack(">i3I", 512, *sums)
