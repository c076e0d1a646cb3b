"""Random rows of a producer, plain SQL: no relay ends, no innocent message waits, nothing forged is published.

OUTBOX_FUZZ_SEED=… throws the same dice again. The long form is in tests/faults/test_insert_fuzz.py.
"""

from __future__ import annotations

import os
import secrets
import sys

import pytest

from outbox_relay.testing.publishing import publish_all
from tests.support.insert_fuzzing import verify, write_rows
from tests.support.logins import Logins
from tests.support.servers import MakeTopic

SEED = int(os.environ.get("OUTBOX_FUZZ_SEED") or secrets.randbelow(1_000_000))


@pytest.mark.parametrize("fixed", [True, False], ids=["fixed seed", "random seed"])
def test_no_row_of_a_producer_stops_an_innocent_message(
    database: str, logins: Logins, bootstrap_servers: str, make_topic: MakeTopic, fixed: bool
) -> None:
    seed = 11 if fixed else SEED
    sys.stderr.write(f"OUTBOX_FUZZ_SEED={seed}\n")
    topics = [make_topic(), make_topic()]
    fuzzed = write_rows(database, logins.make("outbox_producer"), topics, 300, seed)
    assert len(fuzzed.accepted) > 50
    publish_all(database, bootstrap_servers, timeout=120)
    verify(database, bootstrap_servers, topics, fuzzed)
