"""Manifests of a Parquet warehouse: the highest version counts, is written once, and names all that there is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outbox_etl.errors import ConcurrentRunError, TargetError
from outbox_etl.warehouse.manifest import FOLDER, DataFile, LocalManifests, Manifest, TableFiles

FIRST = Manifest(
    1, {"outbox.window-hi": "7"}, {"t": TableFiles("`id` bigint", (DataFile("t/a/f.parquet", 2, 1, 9),))}
)


def test_what_was_committed_is_read_again(tmp_path: Path) -> None:
    manifests = LocalManifests(tmp_path)
    assert manifests.newest() == Manifest()
    manifests.commit(FIRST)
    manifests.commit(replace(FIRST, version=2, watermark={}))
    assert LocalManifests(tmp_path).newest() == replace(FIRST, version=2, watermark={})


def test_a_version_is_written_once(tmp_path: Path) -> None:
    LocalManifests(tmp_path).commit(FIRST)
    with pytest.raises(ConcurrentRunError, match="version 1"):
        LocalManifests(tmp_path).commit(replace(FIRST, watermark={}))
    assert LocalManifests(tmp_path).newest() == FIRST
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["000000000001.json"]


def test_versions_count_by_number_beyond_nine(tmp_path: Path) -> None:
    for version in range(1, 12):
        LocalManifests(tmp_path).commit(replace(FIRST, version=version))
    assert LocalManifests(tmp_path).newest().version == 11


def test_what_a_dead_run_left_is_not_there(tmp_path: Path) -> None:
    manifests = LocalManifests(tmp_path)
    manifests.commit(FIRST)
    (tmp_path / FOLDER / ".0123").write_text('{"format": 1')
    (tmp_path / "t" / "b").mkdir(parents=True)
    (tmp_path / "t" / "b" / "part-0.parquet").write_bytes(b"PAR1")
    assert manifests.newest() == FIRST


def test_a_run_that_died_before_its_first_version_leaves_an_empty_warehouse(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / ".0123").write_text("")
    assert LocalManifests(tmp_path).newest() == Manifest()


def test_a_version_whose_files_are_not_there_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalManifests(tmp_path).commit(FIRST, ["t/a"])
    assert LocalManifests(tmp_path).newest() == Manifest()


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"format": 1', '{"format": 2}', '{"format": 1, "version": 1, "watermark": {}, "tables": []}'],
)
def test_something_else_under_the_name_of_a_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "000000000001.json").write_text(text)
    with pytest.raises(TargetError, match=r"000000000001\.json is (not a manifest|of format 2)"):
        LocalManifests(tmp_path).newest()


def test_a_directory_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(TargetError, match=r"thesis\.tex and no manifest"):
        LocalManifests(tmp_path).newest()
