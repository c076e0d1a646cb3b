"""The feature table: which row of docs/features.toml is proven by which test.

A test names the rows it proves with `@pytest.mark.feature("S-13")`. As a pytest plugin (`-p tests.features`,
set in pyproject.toml) this module refuses ids that are not in the table, so that a typing error cannot pass
as a proof. As a program it collects all tests, runs none, and prints the table:

    python -m tests.features            # print it
    python -m tests.features --write    # bring docs/features.md up to date
    python -m tests.features --check    # exit 1 when docs/features.md is not up to date
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import io
import sys
import tomllib
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "features.toml"
PAGE = ROOT / "docs" / "features.md"
HEAD = """\
# Features

What RocketMQ's transactional, ordered and consumed-once messages offer, row by row: its idea by a short name,
what stands for it here, and the tests that prove it. A row without a test is not claimed.
The H rows are not RocketMQ's.
Written by `make features ARGS=--write` from [features.toml](features.toml) and the marks of the tests.
"""
NOT_YET = "not yet"


class Row(NamedTuple):
    """One line of the feature table."""

    id: str
    section: str
    name: str
    here: str


@functools.cache
def read_rows(source: Path = DATA) -> dict[str, Row]:
    """The rows by id, in the order of the file."""
    with source.open("rb") as file:
        sections = tomllib.load(file)
    return {id: Row(id, section, *texts) for section, rows in sections.items() for id, texts in rows.items()}


def claims(item: pytest.Item) -> list[str]:
    """The row ids a test claims to prove."""
    return [str(id) for mark in item.iter_markers("feature") for id in mark.args]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn a mark that names no row into a collection error of its file.

    Here and not in `pytest_collection_modifyitems`, because an exception there ends a worker of pytest-xdist
    with an internal error instead of a message.
    """
    report = yield
    wrong = [fault for item in report.result or () if isinstance(item, pytest.Item) for fault in faults(item)]
    if wrong:
        report.outcome = "failed"
        report.longrepr = "\n".join(wrong)
        report.result = []
    return report


def faults(item: pytest.Item) -> list[str]:
    """What is wrong with the feature marks of a test, each with the nearest row."""
    rows = read_rows()
    marks = list(item.iter_markers("feature"))
    wrong = []
    if any(not mark.args or mark.kwargs for mark in marks):
        wrong.append(f'{item.nodeid}: feature() takes row ids and nothing else, like feature("S-13")')
    for id in claims(item):
        if id not in rows:
            near = difflib.get_close_matches(id, rows, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            wrong.append(f"{item.nodeid}: {id!r} is no row of docs/features.toml{hint}")
    return wrong


class Collector:
    """A pytest plugin that keeps what was collected and what could not be."""

    def __init__(self) -> None:
        self.proofs: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note each test once, its parameters dropped, under the rows it proves."""
        for item in session.items:
            test = item.nodeid.partition("[")[0]
            for id in claims(item):
                tests = self.proofs.setdefault(id, [])
                if test not in tests:
                    tests.append(test)


def collect(directory: Path = ROOT / "tests") -> dict[str, list[str]]:
    """Row id → node ids of the tests that prove it, from a collection that runs no test and starts no server.

    Raises:
        RuntimeError: with pytest's own output, when a file cannot be collected.
    """
    collector = Collector()
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", str(directory)], [collector])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(output.getvalue())
    return {id: sorted(tests) for id, tests in collector.proofs.items()}


def page(rows: Mapping[str, Row], proofs: Mapping[str, list[str]]) -> str:
    """The whole of docs/features.md; it names files, not tests, so that renaming a test leaves it alone."""
    lines = [HEAD, f"{len(proofs)} of {len(rows)} rows are proven by tests today."]
    section = None
    for row in rows.values():
        if row.section != section:
            section = row.section
            lines += ["", f"## {section}", "", "| Row | RocketMQ | Here | Proven by |", "|---|---|---|---|"]
        files = sorted({test.partition("::")[0] for test in proofs.get(row.id, [])})
        links = ", ".join(f"[{file.removeprefix('tests/')}](../{file})" for file in files)
        cells = (row.id, row.name, row.here, links or NOT_YET)
        lines.append("| " + " | ".join(cell.replace("||", "\\|\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def listing(rows: Mapping[str, Row], proofs: Mapping[str, list[str]]) -> Iterable[str]:
    """The lines of `make features`: row, short name, then each test or "not yet"."""
    section = None
    for row in rows.values():
        if row.section != section:
            section = row.section
            yield f"\n{section}"
        proven = proofs.get(row.id, [])
        yield f"  {row.id:<6} {row.name:<46} {NOT_YET if not proven else ''}".rstrip()
        yield from (f"         {test}" for test in proven)
    tests = {test for proven in proofs.values() for test in proven}
    yield f"\n{len(proofs)} of {len(rows)} rows proven, by {len(tests)} tests"


def main() -> int:
    """Print, write or check the table; answer the exit code."""
    parser = argparse.ArgumentParser(
        prog="make features", description="Which rows of docs/features.md are proven."
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--write", action="store_true", help="bring docs/features.md up to date")
    choice.add_argument("--check", action="store_true", help="exit 1 when docs/features.md is not up to date")
    options = parser.parse_args()
    rows = read_rows()
    try:
        proofs = collect()
    except RuntimeError as error:
        sys.stderr.write(f"{error}\nThe table needs every test file to be importable.\n")
        return 1
    if options.write:
        PAGE.write_text(page(rows, proofs))
    elif options.check and PAGE.read_text() != page(rows, proofs):
        sys.stderr.write("docs/features.md is not up to date: run make features ARGS=--write\n")
        return 1
    if not options.check:
        sys.stdout.writelines(f"{line}\n" for line in listing(rows, proofs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
