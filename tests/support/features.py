"""The feature table: which row of docs/features.toml is proven by which test.

A test names the rows it proves with `@pytest.mark.feature("S-13")`. As a pytest plugin (`-p tests.support.features`,
set in pyproject.toml) this module refuses ids that are not in the table, so that a typing error cannot pass
as a proof. As a program it collects all tests, runs none, and prints the table:

    python -m tests.support.features            # print it
    python -m tests.support.features --write    # bring docs/features.md up to date
    python -m tests.support.features --check    # exit 1 when docs/features.md is not up to date

A row counts as proven when a test of the gate proves it, that is one that `.ci/run` runs for every change. Tests
marked `spark` (unless they are marked `gate` too), `scale`, `browser` or `long` run in longer tiers; a row that only
they prove is listed apart, with the target that runs them.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import io
import sys
import tomllib
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "docs" / "features.toml"
PAGE = ROOT / "docs" / "features.md"
HEAD = """\
# Features

What RocketMQ's transactional, ordered and consumed-once messages offer, row by row: its idea by a short name,
what stands for it here, and the tests that prove it. A row without a test is not claimed.
The H rows are not RocketMQ's.
Written by `make features ARGS=--write` from [features.toml](features.toml) and the marks of the tests.

A row counts as proven when a test that runs for every change (`.ci/run`) proves it. Files of longer tiers stand in
parentheses, with the target that runs them.
"""
NOT_YET = "not yet"
GATE = ""
"""The target of a test that `.ci/run` runs."""
LONGER = {"spark": "make spark", "scale": "make scale", "long": "make faults", "browser": "make browser"}
"""Mark of a longer tier → the target that runs it."""
IN_THE_GATE = "gate"
"""Mark of the tests of Spark that run for every change."""


class Row(NamedTuple):
    """One line of the feature table."""

    id: str
    section: str
    name: str
    here: str


class Proof(NamedTuple):
    """A test that proves a row, by its node id without parameters, and the target that runs it (GATE: `.ci/run`)."""

    test: str
    target: str = GATE

    @property
    def file(self) -> str:
        """The test's file, from the top of the checkout."""
        return self.test.partition("::")[0]


Proofs = Mapping[str, Sequence[Proof]]


@functools.cache
def read_rows(source: Path = DATA) -> dict[str, Row]:
    """The rows by id, in the order of the file."""
    with source.open("rb") as file:
        sections = tomllib.load(file)
    return {id: Row(id, section, *texts) for section, rows in sections.items() for id, texts in rows.items()}


def target_of(item: pytest.Item) -> str:
    """Return the target that runs a test: GATE, or the longer tier that its marks name."""
    if item.get_closest_marker("spark") and item.get_closest_marker(IN_THE_GATE):
        return GATE
    return next((LONGER[mark] for mark in LONGER if item.get_closest_marker(mark)), GATE)


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
    """A pytest plugin that keeps what was collected."""

    def __init__(self) -> None:
        self.proofs: dict[str, set[Proof]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note each test once per target, its parameters dropped, under the rows that it proves."""
        for item in session.items:
            proof = Proof(item.nodeid.partition("[")[0], target_of(item))
            for id in claims(item):
                self.proofs.setdefault(id, set()).add(proof)


def collect(directory: Path = ROOT / "tests") -> dict[str, list[Proof]]:
    """Row id → the tests that prove it, from a collection that runs no test and starts no server.

    Raises:
        RuntimeError: with pytest's own output, when a file cannot be collected.
    """
    collector = Collector()
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", str(directory)], [collector])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(output.getvalue())
    return {id: sorted(proofs) for id, proofs in collector.proofs.items()}


def in_gate(proofs: Sequence[Proof]) -> bool:
    """Return whether a test that runs for every change proves the row."""
    return any(proof.target == GATE for proof in proofs)


def count(rows: Mapping[str, Row], proofs: Proofs) -> tuple[int, list[str]]:
    """Return how many rows the gate proves, and the ids of those that longer tiers alone prove."""
    proven = [id for id in rows if proofs.get(id)]
    longer = [id for id in proven if not in_gate(proofs[id])]
    return len(proven) - len(longer), longer


def targets(proofs: Iterable[Proof]) -> str:
    """Return the targets that run the tests, as `make a`, `make b`."""
    return ", ".join(f"`{target}`" for target in sorted({proof.target for proof in proofs}))


def page(rows: Mapping[str, Row], proofs: Proofs) -> str:
    """Return the whole of docs/features.md; it names files, not tests, so that renaming a test leaves it alone."""
    gate, longer = count(rows, proofs)
    lines = [
        HEAD,
        (
            f"{gate} of {len(rows)} rows are proven by tests that run for every change, "
            f"{len(longer)} more by longer tests only."
        ),
    ]
    section = None
    for row in rows.values():
        if row.section != section:
            section = row.section
            lines += ["", f"## {section}", "", "| Row | RocketMQ | Here | Proven by |", "|---|---|---|---|"]
        cells = (row.id, row.name, row.here, _links(proofs.get(row.id, [])) or NOT_YET)
        lines.append("| " + " | ".join(cell.replace("||", "\\|\\|") for cell in cells) + " |")
    lines += ["", "## Proven by longer tests only", ""]
    lines += [f"- {id}, {rows[id].name}: {targets(proofs[id])}" for id in longer] or ["No row."]
    return "\n".join(lines) + "\n"


def _links(proofs: Sequence[Proof]) -> str:
    """Return the files of the gate, then those of longer tiers with their targets; no file twice."""
    gate = {proof.file for proof in proofs if proof.target == GATE}
    longer = sorted({(proof.file, proof.target) for proof in proofs if proof.file not in gate})
    return ", ".join(
        [*map(_link, sorted(gate)), *(f"({_link(file)}, `{target}`)" for file, target in longer)]
    )


def _link(file: str) -> str:
    return f"[{file.removeprefix('tests/')}](../{file})"


def listing(rows: Mapping[str, Row], proofs: Proofs) -> Iterable[str]:
    """Yield the lines of `make features`: row, short name, then each test or "not yet"; the longer tiers last."""
    section = None
    for row in rows.values():
        if row.section != section:
            section = row.section
            yield f"\n{section}"
        proven = proofs.get(row.id, [])
        yield f"  {row.id:<6} {row.name:<46} {NOT_YET if not proven else ''}".rstrip()
        yield from (
            f"         {proof.test}{f'  ({proof.target})' if proof.target != GATE else ''}"
            for proof in proven
        )
    gate, longer = count(rows, proofs)
    tests = {proof.test for proven in proofs.values() for proof in proven if proof.target == GATE}
    if longer:
        yield "\nProven by longer tests only"
        yield from (f"  {id:<6} {rows[id].name:<46} {targets(proofs[id])}" for id in longer)
    yield (
        f"\n{gate} of {len(rows)} rows proven by {len(tests)} tests that .ci/run runs, "
        f"{len(longer)} more by longer tests only"
    )


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
