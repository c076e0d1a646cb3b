"""The machine: what a reader must know to place the figures, its fsync time above all."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka
import psycopg

from bench.harness.servers import Servers
from bench.harness.statistics import median, percentile
from outbox_relay.downloads.jars import KAFKA_VERSION

FLUSHES = 400
BLOCK = 8192
"""Bytes of a page of PostgreSQL's write-ahead log."""


def describe(servers: Servers) -> dict[str, Any]:
    """Cores, memory, versions, settings that matter, and how long a flush takes."""
    flushes = sorted(flush_times(servers.data_device))
    with psycopg.connect(servers.postgres.address) as conn:
        settings = {
            name: str(value)
            for name, value in conn.execute(
                "select name, current_setting(name) from pg_settings where name in "
                "('server_version', 'fsync', 'synchronous_commit', 'shared_buffers', 'wal_level', 'max_wal_size')"
            )
        }
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "CPU": f"{os.cpu_count()} cores, {_first('/proc/cpuinfo', 'model name')}",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "load before the run (1 min)": f"{os.getloadavg()[0]:.2f}",
        "write and fdatasync of 8 KiB": f"p50 {median(flushes):.2f} ms, p99 {percentile(flushes, 99):.2f} ms",
        "PostgreSQL": settings.pop("server_version")
        + "; "
        + ", ".join(f"{k} = {v}" for k, v in settings.items()),
        "Kafka": f"{KAFKA_VERSION}, one broker on the same machine",
        "Python": f"{platform.python_version()}, psycopg {psycopg.__version__} ({psycopg.pq.__impl__})",
        "Kafka client": f"confluent-kafka {importlib.metadata.version('confluent-kafka')}, "
        f"librdkafka {confluent_kafka.libversion()[0]}",
    }


def flush_times(directory: Path) -> list[float]:
    """Milliseconds of writing 8 KiB and having the disk confirm them, as every commit does."""
    block = b"\0" * BLOCK
    times = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        # Written once in full: PostgreSQL's log files have their length before they are used.
        file.write(block * FLUSHES)
        os.fsync(file.fileno())
        for number in range(FLUSHES):
            began = time.perf_counter()
            os.pwrite(file.fileno(), block, number * BLOCK)
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - began) * 1e3)
    return times


def _first(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return "unknown"
