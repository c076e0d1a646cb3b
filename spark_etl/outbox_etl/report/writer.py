"""The report of a run: requested by --report, refused before the work, written after it however it ended."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from outbox_etl.errors import SourceError
from outbox_etl.failures import explained, masked
from outbox_etl.options.parser import secrets
from outbox_etl.report import output_path
from outbox_etl.report.facts import Facts, RunFacts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from outbox_etl.options.settings import Settings
    from outbox_etl.warehouse.target import Target

LONGEST = 4_000
"""Characters of an unforeseen error: Java's may have thousands of lines."""


class ReportWriter:
    """One run's report; without --report it does nothing.

    As a context it sees errors pass, reports them, and lets them pass. Whatever is wrong with the report, the run's own
    outcome stands.
    """

    def __init__(self, given: argparse.Namespace, settings: Settings, say: Callable[[str], None]) -> None:
        """Check the output path.

        Raises:
            SettingsError: it cannot be written there, or nothing can draw.
        """
        self._path = Path(given.report).expanduser() if given.report else None
        if self._path:
            output_path.check(self._path)
        self._given, self._settings, self._say = given, settings, say
        self._started, self._began = datetime.now(UTC), monotonic()
        self._spark: SparkSession | None = None
        self._target: Target | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path and isinstance(error, Exception):
            self._attempt(self._path, self._run({}, error), error)

    def read_from(self, spark: SparkSession, target: Target) -> None:
        """Take the session and the warehouse that the report reads."""
        self._spark, self._target = spark, target

    def finish(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Write the report of a command that came to its end; return its answer, and where the report is."""
        if not self._path:
            return answer
        problem = self._attempt(self._path, self._run(answer, None), None)
        if problem:
            return {**answer, "report_error": problem, "exit_code": answer.get("exit_code") or 1}
        return {**answer, "report": str(self._path)}

    def _attempt(self, path: Path, run: RunFacts, error: Exception | None) -> str:
        """Write the report; return why it could not be written, or nothing."""
        try:
            from outbox_etl.report.page import page  # noqa: PLC0415  (draws: loaded when there is something to draw)

            output_path.write(path, page(self._facts(run, error)))
        except Exception as problem:  # noqa: BLE001  (the run's own outcome is what counts)
            text = self._text_of(problem)
            self._say(f"the report could not be written: {text}")
            return text
        self._say(f"report: {path}")
        return ""

    def _run(self, answer: dict[str, Any], error: Exception | None) -> RunFacts:
        try:
            version = metadata.version("outbox-kafka")
        except metadata.PackageNotFoundError:
            version = "(not installed as a package)"
        return RunFacts(
            command=self._given.command,
            target=masked(self._settings.target),
            source=str(self._settings.source),
            started=self._started,
            seconds=monotonic() - self._began,
            version=version,
            answer=answer,
            error="" if error is None else self._text_of(error),
        )

    def _facts(self, run: RunFacts, error: Exception | None) -> Facts:
        """Read what can be read."""
        if self._spark is None or self._target is None:
            return Facts(run=run, unread=["The warehouse was not read: the run did not come so far."])
        from outbox_etl.report import gather  # noqa: PLC0415  (Spark is loaded by now)

        mark, found, certificates, unread = None, None, [], []
        try:
            mark = self._target.watermark()
            found = gather.figures(self._spark, self._target) if mark and mark.hi else None
        except Exception as problem:  # noqa: BLE001  (a report says what it has)
            unread.append(f"The warehouse could not be read: {self._text_of(problem)}")
        if mark and not isinstance(error, SourceError):
            try:
                certificates = gather.certificates(self._spark, self._settings, mark)
            except Exception as problem:  # noqa: BLE001
                unread.append(f"The certificates could not be read: {self._text_of(problem)}")
        return Facts(
            run=run,
            watermark=gather.watermark(mark) if mark and mark.hi else None,
            figures=found,
            certificates=certificates,
            unread=unread,
        )

    def _text_of(self, error: Exception) -> str:
        hidden = secrets(self._given)
        known = explained(error, hidden, warehouse=self._given.warehouse)
        return masked(str(known) if known else f"{type(error).__name__}: {error}", hidden)[:LONGEST]
