"""What is in the cache is whole: nothing interrupted, nothing altered."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outbox_relay.downloads.cache import cache_directory, cached, locked
from outbox_relay.downloads.download import download
from outbox_relay.downloads.errors import StackError
from outbox_relay.downloads.jar_list import Jar
from outbox_relay.downloads.jars import pinned
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTBOX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTBOX_MAVEN_REPOSITORY", (tmp_path / "mirror").as_uri())
    return tmp_path / "mirror"


def put(mirror: Path, artifact: str, content: bytes, pinned_content: bytes | None = None) -> Jar:
    pin = hashlib.sha256(content if pinned_content is None else pinned_content).hexdigest()
    jar = Jar("org.example", artifact, "1.0", pin)
    path = mirror / jar.path
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return jar


def nobody(done: int, of: int) -> None:
    """Hear no progress."""


def test_directory_is_filled_once() -> None:
    fills: list[Path] = []
    first = cached("thing", fills.append)
    assert cached("thing", fills.append) == first == cache_directory() / "thing"
    assert len(fills) == 1


def test_interrupted_fill_leaves_nothing_and_is_repeated(cache: Path) -> None:
    def interrupted(part: Path) -> None:
        (part / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("thing", interrupted)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []
    whole = cached("thing", lambda part: (part / "whole").touch())
    assert [path.name for path in whole.iterdir()] == ["whole"]


def test_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path: Path) -> None:
    path, order = tmp_path / "lock", []
    with ThreadPoolExecutor(1) as pool:

        def second() -> None:
            with locked(path):
                order.append("second")
                assert path.exists()

        with locked(path):
            waiting = pool.submit(second)
            wait_until(lambda: _waiters(path), "somebody waits for the lock")
            path.unlink()
            order.append("first")
        waiting.result()
    assert order == ["first", "second"]


def _waiters(path: Path) -> bool:
    """Tell whether somebody waits for a lock on the file, as the kernel tells (its lines with an arrow)."""
    inode = str(path.stat().st_ino)
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f":{inode} " in line for line in lines)


def test_rubble_of_a_killed_fill_is_removed(cache: Path) -> None:
    rubble = cache / ".thing.part-killed"
    rubble.mkdir(parents=True)
    cached("thing", lambda part: None)
    assert not rubble.exists()


def test_jars_are_fetched_from_a_mirror_and_counted(mirror: Path, tmp_path: Path) -> None:
    jars = [put(mirror, name, name.encode()) for name in ("a", "b", "c")]
    told: list[tuple[int, int]] = []
    download(jars, tmp_path, lambda done, of: told.append((done, of)))
    assert [(tmp_path / jar.file_name).read_bytes() for jar in jars] == [b"a", b"b", b"c"]
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_altered_jar_is_refused_with_both_hashes(mirror: Path, tmp_path: Path) -> None:
    jar = put(mirror, "a", b"altered", pinned_content=b"original")
    with pytest.raises(StackError, match=f"sha256 is .*pinned is {jar.sha256}"):
        download([jar], tmp_path, nobody)
    assert not (tmp_path / jar.file_name).exists()


def test_missing_jar_is_an_error_that_names_the_ways_out(mirror: Path, tmp_path: Path) -> None:
    jar = Jar("org.example", "absent", "1.0", "0" * 64)
    with pytest.raises(StackError, match=r"absent-1\.0\.jar could not be fetched.*OUTBOX_MAVEN_REPOSITORY"):
        download([jar], tmp_path, nobody)


def test_repository_of_an_unknown_scheme_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTBOX_MAVEN_REPOSITORY", "ftp://mirror.example/maven2")
    with pytest.raises(StackError, match="must start with https://, http:// or file://, not 'ftp'"):
        download([Jar("org.example", "a", "1.0", "0" * 64)], tmp_path, nobody)


def test_pinned_list_is_whole() -> None:
    jars = pinned()
    assert len({(jar.group, jar.artifact) for jar in jars}) == len(jars)
    assert all(len(jar.sha256) == 64 for jar in jars)
    kafka = {jar.artifact for jar in jars if jar.group == "org.apache.kafka"}
    assert {"kafka_2.13", "kafka-clients", "kafka-server", "kafka-storage"} <= kafka
    assert {jar.version for jar in jars if jar.group == "org.apache.kafka"} == {"4.4.0"}
