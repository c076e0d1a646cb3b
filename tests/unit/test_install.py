"""The environment of a checkout is made once per lock, and never trusted half-made."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from requirements import install


class Checkout:
    """A checkout whose installers note what they are asked for."""

    def __init__(self, root: Path) -> None:
        """Lay the files that an install depends on."""
        self.venv = root / ".venv"
        self.locks = root / "requirements"
        self.locks.mkdir(parents=True)
        for lock in ("installer", "build", "run", "test"):
            (self.locks / f"{lock}.txt").write_text(lock)
        (root / "pyproject.toml").touch()
        self.done: list[str] = []
        self.broken: set[str] = set()
        self.settings: dict[str, str] = {}

    def create(self) -> None:
        """Stand for `python -m venv`: a Python that runs."""
        self.done.append("venv")
        (self.venv / "bin").mkdir()
        true = shutil.which("true")
        assert true
        (self.venv / "bin" / "python").symlink_to(true)

    def pip(self, *wanted: str) -> None:
        """Stand for `pip install`."""
        self._install("pip", wanted)

    def uv(self, *wanted: str, environment: dict[str, str]) -> None:
        """Stand for `uv pip install`."""
        assert environment["UV_SYSTEM_CERTS"] == "1"
        self._install("uv", wanted)

    def _install(self, tool: str, wanted: tuple[str, ...]) -> None:
        if tool in self.broken:
            raise subprocess.CalledProcessError(2, [tool])
        self.done.append(f"{tool} {Path(wanted[-1]).stem}")

    def make(self, lock: str) -> list[str]:
        """Ask for a lock and answer what was done for it."""
        self.done = []
        assert install.main([lock]) == 0
        return self.done


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    return enter(Checkout(tmp_path / "here"), monkeypatch)


def enter(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """Point the installer at a checkout."""
    monkeypatch.setattr(install, "ROOT", checkout.venv.parent)
    monkeypatch.setattr(install, "LOCKS", checkout.locks)
    monkeypatch.setattr(install, "VENV", checkout.venv)
    monkeypatch.setattr(install, "PYTHON", checkout.venv / "bin" / "python")
    monkeypatch.setattr(install, "UNFINISHED", checkout.venv / ".unfinished")
    monkeypatch.setattr(install, "create_environment", checkout.create)
    monkeypatch.setattr(install, "pip_settings", lambda: checkout.settings)
    monkeypatch.setattr(install, "pip", checkout.pip)
    monkeypatch.setattr(install, "uv", checkout.uv)
    return checkout


def test_fresh_checkout_gets_uv_then_build_tools_then_the_lock_then_itself(checkout: Checkout) -> None:
    assert checkout.make("run") == ["venv", "pip installer", "uv build", "uv run", "uv here"]


def test_unchanged_lock_is_not_installed_again(checkout: Checkout) -> None:
    checkout.make("run")
    assert checkout.make("run") == []


@pytest.mark.parametrize("source", ["requirements/run.txt", "requirements/build.txt", "pyproject.toml"])
def test_change_is_installed_into_the_same_environment(checkout: Checkout, source: str) -> None:
    checkout.make("run")
    (checkout.venv.parent / source).write_text("another")
    assert checkout.make("run") == ["pip installer", "uv build", "uv run", "uv here"]


def test_environment_of_the_tests_serves_the_demo_and_not_the_reverse(checkout: Checkout) -> None:
    checkout.make("run")
    assert "uv test" in checkout.make("test")
    assert checkout.make("run") == []


def test_interrupted_install_starts_afresh(checkout: Checkout) -> None:
    checkout.make("run")
    (checkout.venv / "half-a-package").touch()
    checkout.broken = {"uv", "pip"}
    assert install.main(["test"]) == 1
    checkout.broken = set()
    assert checkout.make("run")[0] == "venv"
    assert not (checkout.venv / "half-a-package").exists()


def test_moved_environment_is_made_anew(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout.make("run")
    moved = enter(Checkout(checkout.venv.parent.with_name("there")), monkeypatch)
    checkout.venv.rename(moved.venv)
    assert moved.make("run")[0] == "venv"


def test_environment_without_a_python_is_made_anew(checkout: Checkout) -> None:
    checkout.make("run")
    (checkout.venv / "bin" / "python").unlink()
    assert checkout.make("run")[0] == "venv"


def test_pip_serves_where_uv_does_not_work(checkout: Checkout, capfd: pytest.CaptureFixture[str]) -> None:
    checkout.broken = {"uv"}
    assert checkout.make("run") == ["venv", "pip installer", "pip build", "pip run", "pip here"]
    assert "uv does not work on this machine" in capfd.readouterr().out


@pytest.mark.parametrize("name", install.ROUTES)
def test_pip_serves_a_machine_that_tells_pip_the_way(checkout: Checkout, name: str) -> None:
    checkout.settings = {name: "somewhere"}
    assert checkout.make("run") == ["venv", "pip build", "pip run", "pip here"]


def test_build_that_fails_under_uv_is_not_blamed_on_uv(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def uv(*wanted: str, environment: dict[str, str]) -> None:
        if "-e" in wanted:
            raise subprocess.CalledProcessError(2, ["uv", *wanted])

    monkeypatch.setattr(install, "uv", uv)
    assert install.main(["run"]) == 1
    output = capfd.readouterr()
    assert "uv does not work" not in output.out
    assert "its own words are above: uv --no-deps" in output.err


def test_unknown_lock_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert install.main(["prod"]) == 1
    assert capfd.readouterr().err == "install: name one lock: run or test\n"
