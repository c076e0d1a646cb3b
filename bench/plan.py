"""The plan: how large and how long each benchmark is, and what a benchmark is handed."""

from __future__ import annotations

from dataclasses import dataclass

from bench.harness.servers import Say, Servers

PARTITIONS = 12
"""Kafka partitions of every topic here."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes; the defaults take about an hour on two cores. Times in seconds."""

    rounds: int = 3
    backlog: int = 200_000
    backlog_rounds: int = 3
    raw_messages: int = 200_000
    rates: tuple[int, ...] = (500, 2_000)
    warm_up: float = 3.0
    latency_seconds: float = 20.0
    peer_seconds: float = 10.0
    compared_rounds: int = 2
    compared_rates: tuple[int, ...] = (200, 500, 1_500)
    compared_seconds: float = 10.0
    compared_drain_seconds: float = 20.0
    """After its first record, a side that has not drained the backlog by then is stopped."""
    compared_clients: int = 16
    compared_pgbench_seconds: int = 4
    compared_warm_up: float = 10.0
    """Before each measured time: Java compiles what it runs often."""
    idle_rows: int = 600_000
    idle_polls: int = 1_000
    clients: tuple[int, ...] = (1, 4, 16)
    pgbench_seconds: int = 2
    accounts: int = 100_000
    python_calls: int = 3_000
    burst: int = 50_000
    relay_counts: tuple[int, ...] = (1, 2, 4)
    relay_rounds: int = 3
    roll_seconds: float = 5.0
    roll_rate: int = 10_000
    """Messages per second while relays are restarted in turn."""
    consumed: int = 20_000
    consume_rounds: int = 3
    held_seconds: float = 30.0
    threads: tuple[int, ...] = (1, 16, 64)
    half_rounds: int = 2
    half_seconds: float = 1.2
    peer_rounds: int = 2
    peer_round_seconds: float = 1.5
    peer_warm_up: float = 3.0
    groups_rounds: int = 2
    groups_seconds: float = 6.0
    flood: int = 100_000
    decisions: int = 20_000
    fairness_backlog: int = 1_000_000
    fairness_seconds: float = 90.0
    """How long the other topic has traffic; the backlog is to be drained by then."""
    export_sizes: tuple[tuple[int, int], ...] = ((300_000, 2), (1_000_000, 2))
    """Messages of the history, and rounds."""
    export_relayed: int = 1_000_000
    """Up to so many messages a relay publishes what is written: reconcile finds it in Kafka then."""
    export_window: int = 10_000
    lookups: int = 100
    """Searches for each thing that may be known of a message."""
    lookup_rows: int = 1_000_000
    console_halves: int = 100_000
    console_letters: int = 50_000
    console_reads: int = 10
    export_details: bool = False
    """Also what a task does, small windows and reconcile; `--scale` has them too."""


QUICK = Plan(
    rounds=1,
    backlog=30_000,
    backlog_rounds=1,
    raw_messages=30_000,
    rates=(200,),
    warm_up=1.0,
    latency_seconds=3.0,
    peer_seconds=2.0,
    compared_rounds=1,
    compared_rates=(200,),
    compared_seconds=2.0,
    compared_drain_seconds=5.0,
    compared_clients=4,
    compared_pgbench_seconds=1,
    compared_warm_up=2.0,
    idle_rows=30_000,
    idle_polls=100,
    clients=(1, 4),
    pgbench_seconds=1,
    accounts=10_000,
    python_calls=300,
    burst=10_000,
    relay_counts=(1, 2),
    relay_rounds=1,
    roll_seconds=2.0,
    roll_rate=1_000,
    consumed=2_000,
    consume_rounds=1,
    held_seconds=4.0,
    threads=(1, 8),
    half_rounds=1,
    half_seconds=0.5,
    peer_rounds=1,
    peer_round_seconds=0.5,
    peer_warm_up=1.0,
    groups_rounds=1,
    groups_seconds=3.0,
    flood=20_000,
    decisions=3_000,
    fairness_backlog=50_000,
    fairness_seconds=60.0,
    lookups=10,
    lookup_rows=30_000,
    console_halves=3_000,
    console_letters=1_500,
    console_reads=3,
    export_sizes=((30_000, 1),),
    export_relayed=30_000,
    export_window=2_000,
    export_details=True,
)
"""To see that everything runs; the figures mean nothing."""

SCALE = Plan(
    backlog=1_000_000,
    backlog_rounds=1,
    export_sizes=((3_000_000, 1), (10_000_000, 1)),
    lookup_rows=10_000_000,
)
"""The backlog that `--scale` drains besides, and the histories that it exports and searches besides."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What a benchmark works with."""

    servers: Servers
    plan: Plan
    scale: bool
    say: Say
