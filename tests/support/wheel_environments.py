"""Virtual environments that hold the built wheel, as an application has it: fixtures `wheel` and `install`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.features import ROOT


class Environment(NamedTuple):
    """A virtual environment that holds the wheel and what its metadata asks for."""

    bin: Path
    home: Path

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run one of its programs away from the checkout, without the environment of this process."""
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.home,
            env={"PATH": os.defpath, "HOME": str(self.home), "LC_ALL": "C.UTF-8", **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def python(self, program: str) -> str:
        """Run a Python program and answer what it printed."""
        result = self.run("python", "-I", "-c", program)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source archive, so that the archive is known to be whole too."""
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(target.glob("*.whl"))


@pytest.fixture(scope="session")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    """Makes an environment with the wheel and the named extras, at the versions of our lock."""

    def make(*requirements: str) -> Environment:
        home = tmp_path_factory.mktemp("host")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
        lock = (ROOT / "requirements" / "test.txt").read_text(encoding="utf-8")
        versions = home / "versions.txt"
        versions.write_text("\n".join(re.findall(r"^[a-z][^\\\n]*", lock, re.MULTILINE)))
        environment = Environment(home / "venv" / "bin", home)
        target = str(environment.bin / "python")
        uv = shutil.which("uv", path=str(Path(sys.executable).parent))
        # As requirements/install.py does: uv where it serves this machine, else pip.
        tools = [[uv, "pip", "install", "--system-certs", "--python", target]] if uv else []
        tools.append([sys.executable, "-m", "pip", "--python", target, "install", "--no-compile"])
        outputs = []
        for tool in tools:
            command = [*tool, "--quiet", "-c", str(versions), *requirements]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return environment
            outputs.append(done.stdout + done.stderr)
        raise AssertionError("\n".join(outputs))

    return make
