"""The feature table is honest: its ids are known, its page is up to date."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.features import ROOT, Collector, Proof, Row, listing, page, read_rows

# A group, and so begun first: the page asks for a collection of all tests.
pytestmark = pytest.mark.xdist_group("features")

pytest_plugins = ["pytester"]


def run(pytester: pytest.Pytester, source: str) -> pytest.RunResult:
    """Run pytest with our plugin over one test file."""
    pytester.makeini("[pytest]\nmarkers =\n    feature(*ids): rows\n")
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess(
        "--disable-plugin-autoload", "-p", "tests.support.features", "-p", "no:cacheprovider"
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
    assert [id for id in rows if id.startswith("S")] == rocketmq
    others = [id for id in rows if not id.startswith("S")]
    assert others == sorted(others)
    assert others[:4] == ["H-01", "H-02", "H-03", "H-04"]
    assert [row.id for row in rows.values() if not row.name or not row.here] == []


ROWS = {
    "S-01": Row("S-01", "Why", "XA", "one transaction"),
    "S-67": Row("S-67", "Why", "Tags", "joined by ||"),
    "H-01": Row("H-01", "More", "History", "windows"),
}
GATE_AND_MORE = {
    "S-01": [
        Proof("tests/unit/test_a.py::test_one"),
        Proof("tests/unit/test_a.py::test_two"),
        Proof("tests/unit/test_a.py::test_long", "make faults"),
        Proof("tests/scale/test_b.py::test_many", "make scale"),
    ],
    "H-01": [Proof("tests/spark/test_c.py::test_export", "make spark")],
}


def test_page_names_files_once_and_admits_what_is_missing() -> None:
    text = page(ROWS, GATE_AND_MORE)
    assert (
        "| S-01 | XA | one transaction | [unit/test_a.py](../tests/unit/test_a.py), "
        "([scale/test_b.py](../tests/scale/test_b.py), `make scale`) |" in text
    )
    assert "| S-67 | Tags | joined by \\|\\| | not yet |" in text


def test_a_row_that_no_test_of_the_gate_proves_is_counted_and_listed_apart() -> None:
    text = page(ROWS, GATE_AND_MORE)
    assert "1 of 3 rows are proven by tests that run for every change, 1 more by longer tests only." in text
    assert (
        "| H-01 | History | windows | ([spark/test_c.py](../tests/spark/test_c.py), `make spark`) |" in text
    )
    assert "## Proven by longer tests only\n\n- H-01, History: `make spark`\n" in text
    lines = [line.strip() for line in listing(ROWS, GATE_AND_MORE)]
    at = lines.index("Proven by longer tests only")
    assert lines[at + 1].split() == ["H-01", "History", "`make", "spark`"]
    assert lines[-1] == "1 of 3 rows proven by 2 tests that .ci/run runs, 1 more by longer tests only"


def test_listing_names_every_test_and_the_target_of_those_outside_the_gate() -> None:
    lines = [line.strip() for line in listing(ROWS, GATE_AND_MORE) if "::" in line]
    assert lines == [
        "tests/unit/test_a.py::test_one",
        "tests/unit/test_a.py::test_two",
        "tests/unit/test_a.py::test_long  (make faults)",
        "tests/scale/test_b.py::test_many  (make scale)",
        "tests/spark/test_c.py::test_export  (make spark)",
    ]


def test_marks_name_the_target_that_runs_a_test(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\nmarkers =\n    feature(*ids): rows\n    spark\n    gate\n    scale\n    long\n"
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.feature("S-13")
        @pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.long)])
        def test_faults(number): pass

        @pytest.mark.feature("S-13")
        @pytest.mark.spark
        def test_export(): pass

        @pytest.mark.feature("S-13")
        @pytest.mark.spark
        @pytest.mark.gate
        def test_short_export(): pass

        @pytest.mark.feature("S-13")
        @pytest.mark.scale
        def test_backlog(): pass
        """
    )
    collector = Collector()
    pytester.inline_run(
        "--disable-plugin-autoload",
        "-p",
        "tests.support.features",
        "-p",
        "no:cacheprovider",
        plugins=[collector],
    )
    found = {(proof.test.partition("::")[2], proof.target) for proof in collector.proofs["S-13"]}
    assert found == {
        ("test_faults", ""),
        ("test_faults", "make faults"),
        ("test_export", "make spark"),
        ("test_short_export", ""),
        ("test_backlog", "make scale"),
    }


def test_features_page_is_up_to_date() -> None:
    command = [sys.executable, "-m", "tests.support.features", "--check"]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert result.returncode == 0, result.stdout + result.stderr
