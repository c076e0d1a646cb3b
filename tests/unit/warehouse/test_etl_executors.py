"""What is sent to Spark's executors runs where this package is not installed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from pyspark import cloudpickle

from outbox_etl.reconcile import kafka

LOADS = """
import sys
sys.modules["outbox_etl"] = None  # as on a machine that does not have it
from pyspark import cloudpickle
run = cloudpickle.loads(sys.stdin.buffer.read())
import pyarrow as pa
no_ranges = pa.RecordBatch.from_pylist([], pa.schema([("topic", pa.string())]))
print(list(run([no_ranges], {})))
"""


def test_reading_kafka_needs_nothing_of_the_package() -> None:
    pickle: Any = cloudpickle  # (has no types)
    pickle.register_pickle_by_value(kafka)
    sent = pickle.dumps(kafka._records)
    done = subprocess.run(
        [sys.executable, "-c", LOADS], input=sent, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, b"[]"), done.stderr.decode()
