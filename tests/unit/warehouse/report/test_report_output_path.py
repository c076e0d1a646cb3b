"""The report's file: refused before the work where it cannot be, whole or not there afterwards."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from outbox_etl.errors import SettingsError
from outbox_etl.report import output_path


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--report .*cannot be written.*No such file"):
        output_path.check(tmp_path / "nowhere" / "report.html")


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be written"):
        output_path.check(tmp_path / "file" / "report.html")


@pytest.mark.parametrize("name", [".", "/dev/null"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="is not a file"):
        output_path.check(tmp_path / name)


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    output_path.check(tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_it_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else known(name, *rest)
    )
    with pytest.raises(SettingsError, match="pip install matplotlib"):
        output_path.check(tmp_path / "report.html")


def test_a_report_replaces_an_older_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    for text in ("old", "né"):
        output_path.write(path, text)
    assert path.read_text(encoding="utf-8") == "né"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_keeps_the_older_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    output_path.write(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        output_path.write(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "report.html").symlink_to(tmp_path / "shared" / "latest.html")
    output_path.write(tmp_path / "report.html", "new")
    assert (tmp_path / "shared" / "latest.html").read_text(encoding="utf-8") == "new"
    assert (tmp_path / "report.html").is_symlink()
