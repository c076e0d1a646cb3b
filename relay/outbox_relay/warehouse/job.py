"""The process that runs the job: takes its arguments from standard input, reports the progress of Spark's stages.

Why standard input: the arguments hold passwords, and every user of a machine sees a command line. Its end also shows
that the parent is gone, however that died; the job then ends, and Spark's Java with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from time import sleep
from typing import Any

STAGES = "outbox-etl-stages: "
"""Begins a line of progress: a JSON list of the stages that run, each with `stage`, `tasks`, `done` and `failed`."""
INTERVAL = 0.5
"""Seconds between two reads of Spark's stages."""
ENDED = 143
"""The exit code after the end of the parent, as after a SIGTERM."""


def main() -> int:
    """Run `outbox_etl` with the arguments that stand in the first line of standard input, as a JSON list."""
    arguments = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    threading.Thread(target=_tell_stages, name="stages", daemon=True).start()
    from outbox_etl.main import main as work  # noqa: PLC0415  (the threads come first: it takes a while to load)

    return work(arguments)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(ENDED)


def _tell_stages() -> None:
    told: list[dict[str, Any]] = []
    while True:
        sleep(INTERVAL)
        stages = _stages()
        if stages and stages != told:
            sys.stderr.write(f"{STAGES}{json.dumps(stages)}\n")
            sys.stderr.flush()
            told = stages


def _stages() -> list[dict[str, Any]]:
    """The stages that run; none before Spark has started, or while it stops."""
    context = getattr(
        getattr(sys.modules.get("pyspark"), "SparkContext", None), "_active_spark_context", None
    )
    if context is None:
        return []
    found = []
    # A context that stops loses its gateway between two calls; a look at progress never ends a run.
    with contextlib.suppress(Exception):
        tracker = context.statusTracker()
        for stage in sorted(tracker.getActiveStageIds()):
            info = tracker.getStageInfo(stage)
            if info is not None:
                found.append(
                    {
                        "stage": stage,
                        "tasks": info.numTasks,
                        "done": info.numCompletedTasks,
                        "failed": info.numFailedTasks,
                    }
                )
    return found


if __name__ == "__main__":
    raise SystemExit(main())
