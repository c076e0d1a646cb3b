"""Notes which tests of a run failed, and of which of them only a wait ran out: a plugin of pytest.

The run writes JSON to the file that OUTBOX_FAILURES names: node id → WAIT or OTHER. `tests.support.second_try` and
`tests.support.burn_in` read it. OUTBOX_ORDER, a number, shuffles the tests by it.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.waiting import StageTimeoutError, WaitTimeoutError

FILE = "OUTBOX_FAILURES"
ORDER = "OUTBOX_ORDER"
WAIT = "wait"
OTHER = "other"
VERDICTS = "tests/faults/"
"""What a test of faults waits for in vain is a message that was lost, a relay that does not take over: its verdict,
unless the fault itself did not come about."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Mark the report of a test whose wait ran out: this very error, not one that was raised from it."""
    report = yield
    error = call.excinfo.value if call.excinfo is not None else None
    stage = type(error) is StageTimeoutError
    if stage or (type(error) is WaitTimeoutError and not item.nodeid.startswith(VERDICTS)):
        report.user_properties.append((WAIT, str(error)))
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle the tests where a number asks for it; every worker of xdist makes the same order."""
    if seed := os.environ.get(ORDER):
        random.Random(seed).shuffle(items)


def failures(reports: list[pytest.TestReport | pytest.CollectReport]) -> dict[str, str]:
    """Return the tests that failed: WAIT if waits ran out and nothing else failed, also not in the clean-up."""
    found: dict[str, str] = {}
    for report in reports:
        waited = any(name == WAIT for name, _ in getattr(report, "user_properties", ()))
        verdict = WAIT if waited else OTHER
        if report.when == "teardown" or found.get(report.nodeid) == OTHER:
            verdict = OTHER
        found[report.nodeid] = verdict
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write what failed, once for all workers."""
    if (path := os.environ.get(FILE)) and not hasattr(config, "workerinput"):
        stats = terminalreporter.stats
        Path(path).write_text(json.dumps(failures([*stats.get("failed", ()), *stats.get("error", ())])))
