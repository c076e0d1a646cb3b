"""What is chosen fits the data that is there: a server never starts on data that it cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest

from outbox_local.stack.prepare import refuse_other_version
from outbox_relay.downloads.errors import StackError


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A directory whose `postgres` says that it is version 18.4."""
    file = tmp_path / "bin" / "postgres"
    file.parent.mkdir()
    file.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 18.4 (Debian 18.4-1)'\n")
    file.chmod(0o755)
    return file.parent


@pytest.mark.parametrize("made_by", [None, "18"])
def test_data_of_the_same_major_version_is_taken(tmp_path: Path, program: Path, made_by: str | None) -> None:
    if made_by is not None:
        (tmp_path / "PG_VERSION").write_text(f"{made_by}\n")
    refuse_other_version(tmp_path, program)


def test_data_of_another_major_version_is_refused_with_the_ways_out(tmp_path: Path, program: Path) -> None:
    (tmp_path / "PG_VERSION").write_text("15\n")
    with pytest.raises(
        StackError, match=r"made by PostgreSQL 15, .* is PostgreSQL 18\.4: .*--from auto.*--wipe"
    ):
        refuse_other_version(tmp_path, program)
