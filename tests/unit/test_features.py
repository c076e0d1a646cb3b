"""The feature table is honest: its ids are known, its page is up to date."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.features import ROOT, Row, listing, page, read_rows

# A group, and so begun first: the page asks for a collection of all tests.
pytestmark = pytest.mark.xdist_group("features")

pytest_plugins = ["pytester"]


def run(pytester: pytest.Pytester, source: str) -> pytest.RunResult:
    """Run pytest with our plugin over one test file."""
    pytester.makeini("[pytest]\nmarkers =\n    feature(*ids): rows\n")
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess(
        "--disable-plugin-autoload", "-p", "tests.features", "-p", "no:cacheprovider"
    )


def test_unknown_row_is_a_collection_error_that_names_the_nearest(pytester: pytest.Pytester) -> None:
    result = run(pytester, "import pytest\n\n@pytest.mark.feature('S-999')\ndef test_a():\n    pass\n")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*test_a: 'S-999' is no row of docs/features.toml; did you mean 'S-99'?*"])


def test_mark_without_a_row_is_a_collection_error(pytester: pytest.Pytester) -> None:
    result = run(pytester, "import pytest\n\n@pytest.mark.feature\ndef test_a():\n    pass\n")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*test_a: feature() takes row ids*"])


def test_known_rows_are_accepted(pytester: pytest.Pytester) -> None:
    result = run(pytester, "import pytest\n\n@pytest.mark.feature('S-13', 'S-14')\ndef test_a():\n    pass\n")
    result.assert_outcomes(passed=1)


def test_rows_are_complete_and_told() -> None:
    rows = read_rows()
    rocketmq = [f"S-{number:02}" for number in range(1, 105) if number != 59]
    assert list(rows) == [*rocketmq, *(f"H-{number:02}" for number in range(1, 5))]
    assert [row.id for row in rows.values() if not row.name or not row.here] == []


def test_page_names_files_once_and_admits_what_is_missing() -> None:
    rows = {
        "S-01": Row("S-01", "Why", "XA", "one transaction"),
        "S-67": Row("S-67", "Why", "Tags", "joined by ||"),
    }
    text = page(rows, {"S-01": ["tests/unit/test_a.py::test_one", "tests/unit/test_a.py::test_two"]})
    assert "1 of 2 rows" in text
    assert "| S-01 | XA | one transaction | [unit/test_a.py](../tests/unit/test_a.py) |" in text
    assert "| S-67 | Tags | joined by \\|\\| | not yet |" in text


def test_listing_names_every_test() -> None:
    lines = list(
        listing({"S-01": Row("S-01", "Why", "XA", "")}, {"S-01": ["a.py::test_one", "a.py::test_two"]})
    )
    assert [line.strip() for line in lines if "::" in line] == ["a.py::test_one", "a.py::test_two"]


def test_features_page_is_up_to_date() -> None:
    command = [sys.executable, "-m", "tests.features", "--check"]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert result.returncode == 0, result.stdout + result.stderr
