"""Everything is killed, paused and restarted at random under load, and no promise is broken.

The truth is PostgreSQL's business table: after a crash only it knows which transactions it kept (70 % of them
commit asynchronously, so that some are undone). What arrived is read with a stock consumer.
Partitions are narrow, so that they fill, are left out, and come back after a crash; and the sweep, which would repair
what was lost, late and out of order, must have found nothing to do. OUTBOX_CHAOS_SEED=… throws the
same dice again, OUTBOX_CHAOS_SECONDS=… for another time.
"""

from __future__ import annotations

import os
import random
import secrets
import sys

import pytest

from outbox_local.stack.api import Stack
from tests.support.bare_reader import narrow_partitions
from tests.support.concurrent_writers import Writers
from tests.support.kafka_records import TopicReader, by_key_and_version, compare
from tests.support.plain_inserts import PENDING, connect
from tests.support.random_faults import RandomFaults, Relays
from tests.support.waiting import wait_until

USUAL_S = 600
DRAIN_S = 180


@pytest.mark.feature("S-38")
@pytest.mark.long
def test_nothing_is_lost_invented_or_out_of_order(
    private_stack: Stack, private_database: str, private_topic: str
) -> None:
    seed = int(os.environ.get("OUTBOX_CHAOS_SEED") or secrets.randbelow(1_000_000))
    seconds = float(os.environ.get("OUTBOX_CHAOS_SECONDS") or USUAL_S)
    sys.stderr.write(f"OUTBOX_CHAOS_SEED={seed}\n")
    with connect(private_database) as conn:
        narrow_partitions(conn, width=5_000, count=60)
    with (
        Writers(private_database, private_topic, seed=seed, threads=6, keys=200, halves=40) as writers,
        Relays(private_database, private_stack.bootstrap_servers) as relays,
    ):
        faults = RandomFaults(private_stack, relays, writers, random.Random(seed))
        faults.run(seconds)
        relays.serving()
        writers.wait_for(100)
        writers.stop()
        committed = writers.committed()
        reader = TopicReader(private_stack.bootstrap_servers, private_topic)
        try:
            wait_until(
                lambda: (
                    relays.serving().is_running
                    and not set(committed) - set(map(by_key_and_version, reader.read()))
                ),
                f"all {len(committed)} messages arrive; seed {seed}, {faults.journal}",
                seconds=DRAIN_S,
            )
            with connect(private_database) as conn:
                wait_until(
                    lambda: relays.serving().is_running and conn.execute(PENDING).fetchone() is None,
                    f"all is recorded; seed {seed}, {faults.journal}",
                )
            relays.stop()
            found = compare(reader.read(), committed)
        finally:
            reader.close()
        summary = (
            f"seed {seed}: {len(committed)} messages, {writers.transactions} transactions, "
            f"{relays.started} relays, {found.duplicate_records} records twice, faults {dict(faults.thrown)}"
        )
        sys.stderr.write(summary + "\n")
        assert not found.broken, f"{found.broken}\n{summary}\n{faults.journal}"
        assert not relays.repairs, f"{relays.repairs}\n{summary}\n{faults.journal}"
