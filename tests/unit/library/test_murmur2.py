"""murmur2 equals Kafka's own: checked against vectors that Kafka's Java class made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outbox.partitioning import partition_of
from outbox.partitioning.murmur2 import murmur2

DATA = Path(__file__).parent / "data" / "murmur2.json"
VECTORS = {bytes.fromhex(key): hash for key, hash in json.loads(DATA.read_text(encoding="utf-8"))["vectors"]}


@pytest.mark.feature("S-82")
def test_every_vector_of_kafkas_java_class_is_met() -> None:
    assert len(VECTORS) > 200
    assert {len(key) for key in VECTORS} >= {*range(21), 63, 64, 65, 4099}
    assert {key: murmur2(key) for key in VECTORS} == VECTORS


def test_a_remembered_hash_is_the_computed_one() -> None:
    assert [{key: murmur2(key) for key in VECTORS} for _ in range(2)] == [VECTORS, VECTORS]


@pytest.mark.feature("S-82")
def test_a_key_of_chinese_text_goes_where_kafkas_java_client_sends_it() -> None:
    key = "创建订单".encode()
    assert partition_of(None, key, 12) == VECTORS[key] % 12
