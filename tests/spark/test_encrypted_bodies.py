"""Encrypted bodies stay encrypted in the warehouse, and a key that is destroyed makes them unreadable there, too."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.codecs.errors import ErasedError
from outbox.drivers.psycopg_sync import run
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.encrypted_bodies import Record, encryption
from tests.support.export_runs import Exports
from tests.support.outbox_command import succeed
from tests.support.spark_marks import MARKS

pytestmark = [*MARKS, pytest.mark.gate, pytest.mark.feature("H-25")]


def test_a_destroyed_key_erases_what_the_warehouse_has(
    make_exports: Callable[..., Exports], database: str
) -> None:
    outbox = Outbox(codecs={"people": encryption()})
    with psycopg.connect(database) as conn:
        for key in ("k1", "k2"):
            outbox.send(conn, Message("people", key, f"secret of {key}"))
    exports = make_exports(database)
    exports.run()
    columns = ("topic", "key", "body", "headers", "message_id")
    kept = {
        bytes(key).decode(): Record(topic, bytes(key), bytes(body), headers or {}, UUID(message_id))
        for topic, key, body, headers, message_id in exports.target.read(MESSAGE_HISTORY)
        .select(*columns)
        .collect()
    }
    assert sorted(kept) == ["k1", "k2"]
    assert not [record for record in kept.values() if b"secret" in record.body]
    with psycopg.connect(database) as conn:
        read = {key: run(conn, encryption().decode(record, record.body)) for key, record in kept.items()}
    assert read == {"k1": b"secret of k1", "k2": b"secret of k2"}
    succeed("key", "destroy", "customer/k1", "--yes", OUTBOX_DSN=database)
    with psycopg.connect(database) as conn:
        assert run(conn, encryption().decode(kept["k2"], kept["k2"].body)) == b"secret of k2"
        with pytest.raises(ErasedError):
            run(conn, encryption().decode(kept["k1"], kept["k1"].body))
