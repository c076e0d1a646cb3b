"""What fault tests share: a line to the person who runs them, such as the seed that repeats a run."""

from __future__ import annotations

import pytest

from tests.support.terminal_lines import Tell


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """Write a line to the terminal, captured or not; a worker of pytest-xdist has none."""
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    capture = request.config.pluginmanager.get_plugin("capturemanager")

    def write(line: str) -> None:
        if reporter is not None and capture is not None:
            with capture.global_and_fixture_disabled():
                reporter.ensure_newline()
                reporter.write_line(line)

    return write
