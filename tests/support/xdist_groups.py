"""Keeps the tests of one `xdist_group` in one process, whatever pytest makes of their ids.

pytest-xdist 3.8 appends the group to a private attribute of the test, which pytest 9.2 does not read any more: without
a word each test becomes a group of its own. So the workers note the groups in a file of the run, and the scheduler
reads them there.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling

NAME = "groups.json"


def note(items: Iterable[pytest.Item], run: Path) -> None:
    """Write the group of each test that has one into the run's directory; every worker writes the same."""
    marks = ((item.nodeid, item.get_closest_marker("xdist_group")) for item in items)
    groups = {nodeid: str(mark.args[0]) for nodeid, mark in marks if mark is not None}
    part = run / f"{NAME}.{os.getpid()}"
    part.write_text(json.dumps(groups))
    part.rename(run / NAME)


def scheduling(config: pytest.Config, log: Any, run: Path) -> Any:
    """Make pytest-xdist's scheduler of groups, the largest first and then test by test, with the groups of this run."""
    made = LoadGroupScheduling(config, log)
    by_its_end = made._split_scope

    @functools.cache
    def groups() -> dict[str, str]:
        found: dict[str, str] = json.loads((run / NAME).read_text())
        return found

    def scope(nodeid: str) -> str:
        return groups().get(nodeid) or str(by_its_end(nodeid))

    made._split_scope = scope
    return made
