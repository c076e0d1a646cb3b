"""The software of the revision before, out of the history of this repository: a fixture."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

ENTRY = Path(__file__).with_name("older_entry.py")
ROOT = Path(__file__).parents[2]
BEFORE = "0003"
"""Its revision."""
COMMIT = "001a81b8ec53216b34ba0dfc98dda240459c1c0b"
"""The last commit whose software knows no later revision."""


@pytest.fixture(scope="session")
def older_entry(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """How a process of that software is started: the `entry` of RelayProcess and CheckerProcess."""
    folder = tmp_path_factory.mktemp("older")
    command = ["git", "archive", COMMIT, "outbox", "relay", "local", "migrations"]
    packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert packed.returncode == 0, f"the history of the repository is needed: {packed.stderr.decode()}"
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return str(ENTRY), str(folder)
