"""What encryption binds, refuses and remembers, without a database."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from outbox import Message, Outbox
from outbox.codecs import (
    BodyNotEncodedError,
    Chain,
    ErasedError,
    MasterKeyError,
    UndecodableBodyError,
    UnknownKeyError,
)
from outbox.codecs.encryption import Encryption, Keys, KmsKeys, MasterKeys
from outbox.errors import ConfigurationError, InvalidMessageError
from tests.support.encrypted_bodies import MASTER, KeyTable, Record, by_key, encryption

pytestmark = pytest.mark.feature("H-25")
PLAIN = b"Ada Lovelace, 12 St James's Square"
SECRET = base64.b64encode(MASTER).decode()
OWN_ID = Message("customers", "4711", PLAIN, message_id=uuid4())


@pytest.fixture
def table() -> KeyTable:
    return KeyTable()


def test_a_body_is_read_again_and_costs_46_bytes(table: KeyTable) -> None:
    for message in (Message("customers", "4711", PLAIN), OWN_ID, Message("customers", None, b"")):
        record = table.encoded(encryption(), message)
        assert message.body_bytes is not None
        assert len(record.body) == len(message.body_bytes) + 46
        assert PLAIN not in record.body
        assert table.run(encryption().decode(record, record.body)) == message.body_bytes
    assert len({row[0] for row in table.rows.values()}) == 2, "a key per subject"


def test_equal_bodies_do_not_look_equal(table: KeyTable) -> None:
    codec = encryption()
    assert (
        table.encoded(codec, Message("c", "1", PLAIN)).body
        != table.encoded(codec, Message("c", "1", PLAIN)).body
    )


def flipped(place: int) -> Callable[[Record], Record]:
    """Change one bit of the body."""

    def change(record: Record) -> Record:
        body = bytearray(record.body)
        body[place] ^= 1
        return record.but(body=bytes(body))

    return change


@pytest.mark.parametrize(
    "changed",
    [
        lambda record: record.but(topic="others"),
        lambda record: record.but(key=b"4712"),
        lambda record: record.but(key=None),
        lambda record: record.but(message_id=uuid4()),
        lambda record: record.but(body=record.body[:45]),
        lambda record: record.but(body=record.body[:-1]),
        lambda record: record.but(body=b""),
        lambda record: record.but(headers={"encryption": "aes-256-gcm/2"}),
        flipped(0),
        flipped(1),
        flipped(18),
        flipped(30),
        flipped(-1),
    ],
)
def test_a_body_that_was_changed_or_moved_is_refused(
    table: KeyTable, changed: Callable[[Record], Record]
) -> None:
    record = changed(table.encoded(encryption(), OWN_ID))
    with pytest.raises(UndecodableBodyError):
        table.run(encryption().decode(record, record.body))


def test_another_key_of_the_table_does_not_open_a_body(table: KeyTable) -> None:
    codec = encryption()
    one, other = (table.encoded(codec, Message("customers", key, PLAIN)) for key in ("1", "2"))
    body = one.body[:2] + other.body[2:18] + one.body[18:]
    with pytest.raises(UndecodableBodyError, match="does not fit its key"):
        table.run(encryption().decode(one, body))


def test_wrapped_keys_of_two_rows_cannot_be_exchanged(table: KeyTable) -> None:
    codec = encryption()
    one, _ = (table.encoded(codec, Message("customers", key, PLAIN)) for key in ("1", "2"))
    (first, row), (second, other) = table.rows.items()
    table.rows = {first: (row[0], *other[1:]), second: (other[0], *row[1:])}
    with pytest.raises(MasterKeyError, match="does not open"):
        table.run(encryption().decode(one, one.body))


def test_a_body_in_clear_is_refused_unless_it_is_accepted(table: KeyTable) -> None:
    record = Record("customers", b"1", PLAIN, {})
    with pytest.raises(BodyNotEncodedError, match="accept_plain=True"):
        table.run(encryption().decode(record, record.body))
    assert table.run(encryption(accept_plain=True).decode(record, record.body)) == PLAIN


def test_a_copy_of_a_dead_letter_is_bound_to_where_it_came_from(table: KeyTable) -> None:
    record = table.encoded(encryption(), OWN_ID)
    origin = {"dlq-topic": "customers", "dlq-message-id": str(OWN_ID.message_id)}
    copy = record.but(topic="DLQ.mails", message_id=uuid4(), headers={**record.headers, **origin})
    assert table.run(encryption(reads_copies=True).decode(copy, copy.body)) == PLAIN
    with pytest.raises(UndecodableBodyError, match="reads_copies=True"):
        table.run(encryption().decode(copy, copy.body))
    broken = copy.but(headers={**copy.headers, "dlq-message-id": "x"})
    with pytest.raises(UndecodableBodyError, match="dlq-message-id"):
        table.run(encryption(reads_copies=True).decode(broken, broken.body))


def test_a_destroyed_key_is_not_an_unknown_one(table: KeyTable) -> None:
    record = table.encoded(encryption(), OWN_ID)
    with pytest.raises(UnknownKeyError, match="database="):
        KeyTable().run(encryption().decode(record, record.body))
    table.destroy()
    with pytest.raises(ErasedError, match="2026-11-25T12:00:00Z"):
        table.run(encryption().decode(record, record.body))


def test_a_process_reads_an_erased_body_for_the_time_of_its_cache_only(table: KeyTable) -> None:
    now = [0.0]
    codec = encryption(cache_seconds=60, clock=lambda: now[0])
    record = table.encoded(codec, OWN_ID)
    table.destroy()
    now[0] = 59.9
    assert table.run(codec.decode(record, record.body)) == PLAIN
    now[0] = 60.0
    with pytest.raises(ErasedError):
        table.run(codec.decode(record, record.body))


def test_a_cache_of_no_seconds_remembers_nothing(table: KeyTable) -> None:
    codec = encryption(cache_seconds=0)
    record = table.encoded(codec, OWN_ID)
    table.destroy()
    with pytest.raises(ErasedError):
        table.run(codec.decode(record, record.body))


def test_a_key_is_unwrapped_once_for_the_time_of_the_cache(table: KeyTable) -> None:
    master, calls = MasterKeys({"m": MASTER}), []

    def unwrap(key_id: str, wrapped: bytes, context: bytes) -> bytes:
        calls.append(key_id)
        return master.unwrap("m", wrapped, context)

    kms = KmsKeys("arn:1", wrap=master.wrap, unwrap=unwrap)
    writer, reader = (Encryption(Keys(kms), by_key) for _ in range(2))
    record = table.encoded(writer, OWN_ID)
    for _ in range(3):
        assert table.run(reader.decode(record, record.body)) == PLAIN
    assert calls == ["arn:1"]
    assert writer.blocks, "a service is waited for"
    assert not encryption().blocks


@pytest.mark.parametrize("subject", ["", "x" * 256, "a\0b", None, 7])
def test_a_subject_that_cannot_be_stored_is_refused_by_name(table: KeyTable, subject: Any) -> None:
    codec = Encryption(Keys(MasterKeys({"m": MASTER})), lambda _: subject)
    with pytest.raises(InvalidMessageError, match="subject"):
        table.encoded(codec, OWN_ID)
    assert not table.rows


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("", "no master key is given"),
        (f"a:{SECRET}\n\n:{SECRET}", "line 2"),
        (SECRET, "line 1"),
        (f"a:{SECRET[:-4]}", "line 1"),
        (f"a:{SECRET}\na:{SECRET}", "line 2"),
        (f"a,b:{SECRET}", "line 1"),
    ],
)
def test_master_keys_that_cannot_be_read_are_named_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, line: str, wrong: str
) -> None:
    monkeypatch.setenv("MASTER", line)
    with pytest.raises(MasterKeyError, match=wrong) as caught:
        MasterKeys.read("env:MASTER")
    assert SECRET[:20] not in str(caught.value)


def test_master_keys_are_given_by_reference_only(tmp_path: Path) -> None:
    path = tmp_path / "master"
    path.write_text(f"new:{SECRET}\nold:{base64.b64encode(bytes(32)).decode()}\n")
    keys = MasterKeys.read(f"file:{path}")
    assert keys.current == "new"
    assert repr(keys) == "MasterKeys(new, old)"
    for reference, wrong in (
        (f"file:{path}.gone", "No such file"),
        ("env:NOT_SET", "has no variable NOT_SET"),
        (f"new:{SECRET}", "neither file:PATH nor env:NAME"),
    ):
        with pytest.raises(MasterKeyError, match=wrong) as caught:
            MasterKeys.read(reference)
        assert SECRET not in str(caught.value)


def test_a_master_key_that_is_not_configured_is_named(table: KeyTable) -> None:
    record = table.encoded(encryption(), OWN_ID)
    reader = Encryption(Keys(MasterKeys({"m2": MASTER})), by_key)
    with pytest.raises(MasterKeyError, match="master key 'm1' is not configured; configured: m2"):
        table.run(reader.decode(record, record.body))


def test_what_is_no_codec_is_refused_at_the_start() -> None:
    codec = encryption()
    for codecs, wrong in (
        ({"customers": Encryption}, r"codecs\['customers'\]: is Encryption"),
        ({"a topic": codec}, "not a legal Kafka topic name"),
        ([codec], "is list"),
    ):
        with pytest.raises(ConfigurationError, match=wrong):
            Outbox(codecs=codecs)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="two of them write 'encryption'"):
        Chain(codec, codec)
    with pytest.raises(ConfigurationError, match="is empty"):
        Chain()
    with pytest.raises(ConfigurationError, match="keys: is MasterKeys"):
        Encryption(MasterKeys({"m": MASTER}), by_key)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="subject: is int"):
        Encryption(Keys(MasterKeys({"m": MASTER})), 7)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="cache_seconds"):
        encryption(cache_seconds=-1)
