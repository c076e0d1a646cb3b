"""Takes away each guard of tests/mutants.toml, in a copy of the checkout, and sees a test fail.

    python -m tests.support.mutants [WORD …]     # all, or those whose guard contains a word

All tests pass without a mutant first, since a test that fails anyway kills nothing. Mutants share a PostgreSQL and a
broker; each run has a template database of its own. The exit code is 1 if a mutant survives, or cannot be judged.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from outbox_local.stack.api import Stack
from outbox_local.stack.choice import AllowedOrigins
from outbox_local.stack.prepare import StackOptions

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "mutants.toml"
FOLDERS = ("", "relay", "local", "migrations", "spark_etl")
"""Where packages are imported from, in a checkout."""
LIMIT_S, LIMIT_OF_ALL_S = 600, 3600
"""For the tests of a mutant, and for all of them without one."""
FUNCTION = re.compile(r"CREATE (?:OR REPLACE )?FUNCTION (\S+\([^)]*\))")
FAILED = 1
"""The exit code of pytest when tests failed; others mean that it could not run them."""


class Mutant(NamedTuple):
    """A guard that is taken away."""

    guard: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def mutants(source: Path = LIST) -> list[Mutant]:
    """Read the list."""
    rows = tomllib.loads(source.read_text())["mutant"]
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def fault(mutant: Mutant, root: Path = ROOT) -> str | None:
    """Return what is wrong with an entry: its text does not stand in the file once, a later script makes its function
    again, or a test is not there.
    """
    count = (root / mutant.file).read_text().count(mutant.old) if (root / mutant.file).exists() else 0
    if count != 1:
        return f"{mutant.file} has its text {count} times, not once"
    if later := replaced_by(root / mutant.file, mutant.old):
        return f"{mutant.file}: {later}"
    missing = [test for test in mutant.tests if not (root / test.partition("::")[0]).exists()]
    return f"{missing} are no tests" if missing or not mutant.tests else None


def replaced_by(script: Path, text: str) -> str | None:
    """Return which later migration makes the function around a text again: what is changed before is not run."""
    number = script.name.partition("_")[0]
    around = None
    if script.suffix == ".sql" and number.isdigit():
        content = script.read_text()
        around = max(
            FUNCTION.finditer(content, 0, content.index(text)), key=lambda m: m.start(), default=None
        )
    if around is None:
        return None
    made = around[1]
    for path in sorted(script.parent.glob("[0-9]*_*.sql")):
        if path.name.partition("_")[0] > number and made in FUNCTION.findall(path.read_text()):
            return f"{path.name} makes {made} again"
    return None


class Copy:
    """A copy of the checkout whose tests run on servers that all runs share."""

    def __init__(self, folder: Path, stack: Stack) -> None:
        self._root = folder / "checkout"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
        for name in listed.stdout.decode().split("\0"):
            if name and (ROOT / name).exists():
                target = self._root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        self._environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(self._root / name) for name in FOLDERS),
            "OUTBOX_TEST_DSN": stack.dsn,
            "OUTBOX_TEST_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
        }

    def run(self, tests: Sequence[str], *options: str, limit: int = LIMIT_S) -> tuple[int, str]:
        """Run tests; return pytest's exit code and its last lines. A run that does not end has the code -1."""
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=line", *options, *tests]
        try:
            ran = subprocess.run(
                command,
                cwd=self._root,
                env=self._environ,
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return -1, "it did not end"
        return ran.returncode, "\n".join(ran.stdout.splitlines()[-4:])

    def without(self, mutant: Mutant) -> tuple[int, str]:
        """Run the tests of a mutant without its guard, until the first one fails."""
        path = self._root / mutant.file
        text = path.read_text()
        path.write_text(text.replace(mutant.old, mutant.new))
        try:
            return self.run(mutant.tests, "-x")
        finally:
            path.write_text(text)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def judge(copy: Copy, chosen: Sequence[Mutant]) -> list[str]:
    """Run all; return what is wrong."""
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    code, last = copy.run(tests, "--numprocesses", "4", limit=LIMIT_OF_ALL_S)
    if code != 0:
        return [f"tests fail without a mutant:\n{last}"]
    wrong = []
    for mutant in chosen:
        started = time.monotonic()
        code, last = copy.without(mutant)
        verdict = {FAILED: "killed", 0: "SURVIVES"}.get(code, f"cannot be judged: pytest ended with {code}")
        say(f"{verdict:10} {time.monotonic() - started:4.0f} s  {mutant.guard}")
        if code != FAILED:
            wrong.append(f"{verdict}: {mutant.guard} ({mutant.file})\n{last}")
    return wrong


def main(words: Sequence[str]) -> int:
    """Run the chosen mutants; return the exit code."""
    listed = mutants()
    wrong = [f"{mutant.guard}: {told}" for mutant in listed if (told := fault(mutant))]
    chosen = [mutant for mutant in listed if not words or any(word in mutant.guard for word in words)]
    if not wrong:
        options = StackOptions(origins=AllowedOrigins.EMBEDDED)
        with tempfile.TemporaryDirectory() as folder, Stack.start(options=options) as stack:
            wrong = judge(Copy(Path(folder), stack), chosen)
    for line in wrong:
        say(line)
    say(f"{len(chosen)} mutants, {len(wrong)} problems")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
