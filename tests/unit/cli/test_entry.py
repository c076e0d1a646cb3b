"""The `outbox` command without its packages: it says what to install."""

from __future__ import annotations

import sys
import tomllib

import pytest

from outbox_relay.__main__ import EXTRAS, main
from tests.support.features import ROOT


def test_missing_package_names_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "outbox_relay.cli.main", raising=False)
    monkeypatch.setitem(sys.modules, "click", None)
    with pytest.raises(SystemExit) as exit_:
        main()
    assert str(exit_.value).splitlines() == [
        "outbox: this command needs the package click, which is not installed",
        "run: pip install 'outbox-kafka[relay]'",
    ]


def test_error_of_our_own_is_not_taken_for_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "outbox_relay.cli.main", None)
    with pytest.raises(ModuleNotFoundError):
        main()


@pytest.mark.parametrize("package", EXTRAS)
def test_named_extra_brings_the_package(package: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = " ".join(project["optional-dependencies"][EXTRAS[package]])
    assert package.replace("_", "-") in brought
