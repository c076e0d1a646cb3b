"""The metrics and checks of a checker."""

from __future__ import annotations

import time
from collections.abc import Iterator

from outbox.probes import ProbeCheck
from outbox_relay.checker.service import Checker
from outbox_relay.monitoring.catalogue import Families
from outbox_relay.monitoring.server import Monitoring

HANGS_S = 120.0
"""Seconds without an attempt to read the groups after which the checker hangs; a read itself may take long."""
LATE_S = 30.0
"""Seconds since the groups were read after which the checker is not ready."""
RESULTS = ("decided", "unknown", "not_asked", "expired", "late", "locked")


def observe_checker(monitoring: Monitoring, database: str, checker: Checker) -> None:
    """Offer what a checker shows of itself."""

    def live() -> Iterator[ProbeCheck]:
        silent = time.monotonic() - checker.tried_at
        yield ProbeCheck(database, silent < HANGS_S, f"groups were searched for {silent:.1f} s ago")

    def ready() -> Iterator[ProbeCheck]:
        found, groups = checker.found_at, checker.groups
        if found is None:
            yield ProbeCheck(database, False, checker.trouble or "the groups were not read yet")
            return
        ago = time.monotonic() - found
        failing = [group.trouble for group in groups if group.failures and group.trouble]
        if ago >= LATE_S:
            why = f": {checker.trouble}" if checker.trouble else ""
            yield ProbeCheck(database, False, f"{len(groups)} groups, read {ago:.1f} s ago{why}")
        elif failing and len(failing) == len(groups):
            why = f"each turn of its {len(groups)} groups fails, the last: {failing[-1]}"
            yield ProbeCheck(database, False, why)
        else:
            some = f", and the turns of {len(failing)} of them fail: {failing[-1]}" if failing else ""
            yield ProbeCheck(database, True, f"{len(groups)} groups, read {ago:.1f} s ago{some}")

    def metrics(families: Families) -> None:
        if checker.found_at is not None:
            ago = time.monotonic() - checker.found_at
            families.add("outbox_groups_read_seconds", database, value=ago)
        for group in checker.groups:
            total = group.total._asdict()
            for result in RESULTS:
                families.add("outbox_checks", database, group.name, result, value=total[result])
            families.add("outbox_checks_in_flight", database, group.name, value=group.in_flight)
            families.add("outbox_check_turns_failed", database, group.name, value=group.failures)

    monitoring.live.append(live)
    monitoring.ready.append(ready)
    monitoring.metrics.append(metrics)
