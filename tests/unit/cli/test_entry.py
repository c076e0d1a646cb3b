"""The `outbox` command without its packages: it says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from outbox.extras import install_line
from outbox_relay.__main__ import EXTRAS, main
from tests.support.features import ROOT


def test_missing_package_names_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "outbox_relay.cli.main", raising=False)
    monkeypatch.setitem(sys.modules, "click", None)
    with pytest.raises(SystemExit) as exit_:
        main()
    assert str(exit_.value).splitlines() == [
        "outbox: this command needs the package click, which is not installed",
        f"run: {install_line('relay')}",
    ]


def test_error_of_our_own_is_not_taken_for_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "outbox_relay.cli.main", None)
    with pytest.raises(ModuleNotFoundError):
        main()


@pytest.mark.parametrize("file", ["outbox.py", "outbox/__init__.py", "outbox/models.py"])
def test_another_package_of_the_librarys_name_is_named(tmp_path: Path, file: str) -> None:
    """A module, as that of the distribution `outbox`; a package, or a folder without `__init__`, of the application."""
    other = tmp_path / file
    other.parent.mkdir(exist_ok=True)
    other.touch()
    ran = subprocess.run(
        [sys.executable, "-S", "-m", "outbox_relay", "--version"],
        env={"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT / "relay")))},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("outbox: another package is imported as `outbox`: ")
    assert str(tmp_path / "outbox") in ran.stderr
    assert "rename the package" in ran.stderr


@pytest.mark.parametrize("package", EXTRAS)
def test_named_extra_brings_the_package(package: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = " ".join(project["optional-dependencies"][EXTRAS[package]])
    assert package.replace("_", "-") in brought
