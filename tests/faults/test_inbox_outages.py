"""Kafka or PostgreSQL is away for a while: a consumer waits quietly, loses nothing, and counts no attempt.

The time is short so that the test is; what a consumer does in it, it would do for hours: its pauses have reached their
greatest length by then. It is longer than the consumer's session at Kafka: its partitions are lost and assigned again.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from outbox_local.stack.api import Stack
from tests.support.consumer_process import ConsumerProcess
from tests.support.inbox_stage import InboxStage
from tests.support.servers import MakeDatabase, MakeTopic

SETTLES_S = 12.0
"""Until the pauses between attempts are long."""
WATCHED_S = 10.0
MOST_CPU = 4.0
"""Times what the same consumer takes with nothing to do. It takes 0.5 times without PostgreSQL, 1.6 without Kafka."""
MOST_LINES = 20


def cpu_seconds(pid: int) -> float:
    """The CPU time that the threads of a process have used, to the nanosecond."""
    times = [task.read_text(encoding="ascii") for task in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(each.split()[0]) for each in times) / 1e9


def share_while_it_lives(consumer: ConsumerProcess) -> float:
    """Watch a consumer for a while; return which share of a core it uses."""
    used, began = cpu_seconds(consumer.process.pid), time.monotonic()
    lives_for(consumer, WATCHED_S)
    return (cpu_seconds(consumer.process.pid) - used) / (time.monotonic() - began)


def lives_for(consumer: ConsumerProcess, seconds: float) -> None:
    """Watch that it does not end."""
    with pytest.raises(subprocess.TimeoutExpired):
        consumer.process.wait(seconds)


@pytest.mark.feature("S-96")
@pytest.mark.parametrize("away", ["kafka", "postgres"])
def test_a_consumer_waits_quietly_while_a_server_is_away(
    private_stack: Stack, make_private_database: MakeDatabase, make_private_topic: MakeTopic, away: str
) -> None:
    dsn, topic = make_private_database(), make_private_topic()
    stop: Callable[[], object] = getattr(private_stack, f"stop_{away}")
    start: Callable[[], object] = getattr(private_stack, f"start_{away}")
    with ExitStack() as stages:
        stage = stages.enter_context(closing(InboxStage(dsn, private_stack.bootstrap_servers)))
        stage.produce_numbered(topic, 40, keys=10)
        with ConsumerProcess(stage, topic, "a") as consumer:
            stage.wait_applied(40)
            stage.close()
            idle = share_while_it_lives(consumer)
            lines = len(consumer.lines)
            stop()
            lives_for(consumer, SETTLES_S)
            share = share_while_it_lives(consumer)
            written = len(consumer.lines) - lines
            start()
            again = InboxStage(dsn, private_stack.bootstrap_servers, group=stage.group)
            stage = stages.enter_context(closing(again))
            stage.produce_numbered(topic, 40, keys=10, start=40)
            stage.wait_applied(80)
            consumer.stop()
        assert stage.by_key() == {f"k{key}": [*range(key, 80, 10)] for key in range(10)}
        assert stage.count("outbox.inbox_parked") == 0, "no attempt was counted"
        assert share < MOST_CPU * idle, f"{share:.1%} of a core while {away} was away, {idle:.1%} before"
        assert written < MOST_LINES, f"{written} lines of log:\n{consumer.output()}"
