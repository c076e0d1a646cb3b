"""murmur2 against Kafka's own Java class, run live on keys that are new in each run."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from outbox.partitioning.murmur2 import murmur2
from outbox_relay.downloads.jars import kafka_jars
from outbox_relay.downloads.java import find_java
from outbox_relay.downloads.wheels import java_from_wheel

DATA = Path(__file__).parent / "data"
KEYS = 5000


@pytest.mark.feature("S-82")
def test_new_keys_hash_as_kafkas_java_class_hashes_them() -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    source = random.Random(seed)
    keys = [source.randbytes(int(source.expovariate(1 / 20))) for _ in range(KEYS)]
    java = find_java().path or java_from_wheel()
    jars = kafka_jars(lambda done, of: None)
    done = subprocess.run(
        [java, "-cp", f"{DATA}:{jars}/*", "Murmur2Vectors"],
        input="".join(key.hex() + "\n" for key in keys),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    hashes = [int(line.split(" ")[1]) for line in done.stdout.splitlines()]
    assert [murmur2(key) for key in keys] == hashes, f"seed {seed}"
