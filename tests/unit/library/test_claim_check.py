"""Large bodies in a directory: what is kept, what is refused, and what a death leaves."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from outbox import Message
from outbox.codecs import Chain, ErasedError, MissingObjectError, UndecodableBodyError
from outbox.codecs.claim_check import ClaimCheck, DirectoryStore
from outbox.errors import ConfigurationError
from tests.support.encrypted_bodies import KeyTable, Record, encryption

pytestmark = pytest.mark.feature("H-26")
LARGE = b"x" * 1001
MESSAGE = Message("images", "1", LARGE)


@pytest.fixture
def large(tmp_path: Path) -> ClaimCheck:
    return ClaimCheck(DirectoryStore(tmp_path), over=1000)


def files(path: Path) -> list[Path]:
    return [found for found in path.rglob("*") if found.is_file()]


def test_only_what_is_above_the_limit_goes_to_the_store(large: ClaimCheck, tmp_path: Path) -> None:
    table = KeyTable()
    small = table.encoded(large, Message("images", "1", LARGE[:1000]))
    assert (small.body, small.headers, files(tmp_path)) == (LARGE[:1000], {}, [])
    record = table.encoded(large, MESSAGE)
    assert (record.body, record.headers["claim-check-bytes"]) == (b"", "1001")
    (kept,) = files(tmp_path)
    assert str(kept.relative_to(tmp_path)) == record.headers["claim-check"]
    for each, body in ((small, LARGE[:1000]), (record, LARGE)):
        assert table.run(large.decode(each, each.body)) == body


def test_an_encrypted_body_is_encrypted_in_the_store_and_erased_with_its_key(
    large: ClaimCheck, tmp_path: Path
) -> None:
    table = KeyTable()
    both = Chain(encryption(cache_seconds=0), large)
    record = table.encoded(both, MESSAGE)
    (kept,) = files(tmp_path)
    assert LARGE not in kept.read_bytes()
    assert table.run(both.decode(record, record.body)) == LARGE
    table.destroy()
    with pytest.raises(ErasedError):
        table.run(both.decode(record, record.body))


@pytest.mark.parametrize(
    "change", [lambda body: body[:-1], lambda body: body + b"x", lambda body: b"y" + body[1:], lambda _: b""]
)
def test_an_object_that_was_changed_is_refused(
    large: ClaimCheck, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    record = KeyTable().encoded(large, MESSAGE)
    (kept,) = files(tmp_path)
    kept.write_bytes(change(LARGE))
    with pytest.raises(UndecodableBodyError, match="was changed"):
        KeyTable().run(large.decode(record, record.body))


def test_an_object_that_is_gone_is_named(large: ClaimCheck, tmp_path: Path) -> None:
    record = KeyTable().encoded(large, MESSAGE)
    files(tmp_path)[0].unlink()
    with pytest.raises(MissingObjectError, match=record.headers["claim-check"]):
        KeyTable().run(large.decode(record, record.body))


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "2026-11-25/../x", "", "2026-11-25/1"])
def test_a_reference_cannot_lead_out_of_the_store(large: ClaimCheck, tmp_path: Path, name: str) -> None:
    record = Record("images", b"1", b"", {"claim-check": name, "claim-check-sha256": "0"})
    with pytest.raises(UndecodableBodyError, match="a day and a UUID"):
        KeyTable().run(large.decode(record, record.body))
    with pytest.raises(KeyError):
        DirectoryStore(tmp_path).get(name)
    with pytest.raises(KeyError):
        DirectoryStore(tmp_path).put(name, b"")


def test_a_body_that_is_half_written_has_no_name(
    large: ClaimCheck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails, or the process dies, before the body is flushed."""

    def fails(_: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="the disk is full"):
        KeyTable().encoded(large, MESSAGE)
    assert [found.suffix for found in files(tmp_path)] == [".part"]


def test_days_are_dropped_with_what_nothing_refers_to(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    today = datetime.now(UTC).date()
    old = today - timedelta(days=8)
    (tmp_path / "lost+found").mkdir()
    for day in (old, today):
        store.put(f"{day}/00000000-0000-0000-0000-000000000001", b"x")
    (tmp_path / str(old) / "left.part").touch()
    assert store.drop_days(before=today - timedelta(days=7)) == [old]
    assert store.drop_days(before=date(2000, 1, 1)) == []
    assert sorted(found.name for found in tmp_path.iterdir()) == [str(today), "lost+found"]


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a directory"):
        DirectoryStore(tmp_path / "not mounted")
    with pytest.raises(ConfigurationError, match="store: is str"):
        ClaimCheck("/mnt")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="over: -1"):
        ClaimCheck(DirectoryStore(tmp_path), over=-1)


@pytest.mark.parametrize(("shared", "folder", "file"), [(False, 0o700, 0o600), (True, 0o770, 0o640)])
def test_others_of_the_machine_read_no_body(tmp_path: Path, shared: bool, folder: int, file: int) -> None:
    before = os.umask(0o022)
    try:
        store = DirectoryStore(tmp_path, share_with_group=shared)
        store.put("2026-11-25/3f2b0000-0000-4000-8000-000000000000", LARGE)
    finally:
        os.umask(before)
    (body,) = files(tmp_path)
    assert (body.parent.stat().st_mode & 0o777, body.stat().st_mode & 0o777) == (folder, file)
