"""Ten thousand random rows of a producer, plain SQL; the short form is in
tests/integration/publisher/test_insert_fuzz.py.

OUTBOX_FUZZ_SEED=… throws the same dice again.
"""

from __future__ import annotations

import os
import secrets

from outbox_relay.testing.publishing import publish_all
from tests.support.insert_fuzzing import verify, write_rows
from tests.support.logins import Logins
from tests.support.servers import MakeTopic
from tests.support.terminal_lines import Tell

ROWS = 10_000


def test_no_row_of_a_producer_stops_an_innocent_message(
    database: str, logins: Logins, bootstrap_servers: str, make_topic: MakeTopic, tell: Tell
) -> None:
    seed = int(os.environ.get("OUTBOX_FUZZ_SEED") or secrets.randbelow(1_000_000))
    tell(f"OUTBOX_FUZZ_SEED={seed}")
    topics = [make_topic(), make_topic(), make_topic()]
    fuzzed = write_rows(database, logins.make("outbox_producer"), topics, ROWS, seed)
    publish_all(database, bootstrap_servers, timeout=120)
    verify(database, bootstrap_servers, topics, fuzzed)
    assert len(fuzzed.accepted) > ROWS // 4
