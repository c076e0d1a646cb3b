"""A target's name is that of the place, however it is written, with the catalog that keeps the tables and no login."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outbox_etl.options.dsn import parse
from outbox_etl.options.settings import Settings

DSN = "postgresql://app:secret@db:5432/shop?sslmode=require"


def named(warehouse: str, **options: Any) -> str:
    return Settings(parse(DSN), warehouse, **options).target


def test_two_ways_to_write_a_path_are_one_target(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to("lake")
    place = str((tmp_path / "lake").resolve())
    ways = (
        f"{tmp_path}/lake",
        f"{tmp_path}/lake/",
        f"{tmp_path}/x/../lake",
        f"{tmp_path}/link",
        f"file://{tmp_path}/lake",
    )
    assert {named(way) for way in ways} == {place}
    assert named(f"{tmp_path}/link", format="parquet") == f"{place} (parquet)"


@pytest.mark.parametrize(
    ("written", "target"),
    [
        ("s3a://bucket/w", "s3a://bucket/w"),
        ("s3a://bucket/w/", "s3a://bucket/w"),
        ("s3a://bucket//a/../w//", "s3a://bucket/w"),
        ("s3a://key:secret@bucket/w", "s3a://bucket/w"),
        ("hdfs:///w/", "hdfs:///w"),
        ("hdfs://NAME:8020/w", "hdfs://name:8020/w"),
    ],
)
def test_two_ways_to_write_a_uri_are_one_target(written: str, target: str) -> None:
    assert named(written) == target


def test_a_catalog_is_named_with_its_place_and_without_its_login() -> None:
    rest = {"catalog": "rest", "catalog_uri": "https://me:secret@catalog:8181/api/?token=x"}
    assert named("shop", **rest) == "shop (rest https://catalog:8181/api)"
    assert named("/w", catalog="jdbc") == "/w (jdbc postgresql://db:5432/shop)"
    other = "postgresql://me:secret@other/lake"
    assert named("/w", catalog="jdbc", catalog_uri=other) == "/w (jdbc postgresql://other:5432/lake)"
