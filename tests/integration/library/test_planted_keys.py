"""A producer that writes keys of other subjects neither reads their bodies nor stops anybody from sending."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.codecs.encryption import Encryption, Keys, KmsKeys, MasterKeys
from outbox.codecs.errors import MasterKeyError
from outbox.codecs.master_keys import MasterKeyProvider
from tests.support.encrypted_bodies import by_key
from tests.support.logins import Logins

OURS, THEIRS = MasterKeys({"m1": bytes(range(32))}), MasterKeys({"evil": bytes(32)})
PLANT = """
    INSERT INTO outbox.subject_key (id, subject, wrapped, master_id)
    SELECT gen_random_uuid(), 'customer/' || n, %s, %s FROM generate_series(1, 1000) n
"""


def service() -> KmsKeys:
    """A key management service of the whole cloud: it opens what any key wrapped, the attacker's too."""

    def unwrap(key_id: str, wrapped: bytes, context: bytes) -> bytes:
        master, name = (THEIRS, "evil") if key_id == "arn:evil" else (OURS, "m1")
        return master.unwrap(name, wrapped, context)

    return KmsKeys("arn:ours", wrap=OURS.wrap, unwrap=unwrap)


def encrypting(master: MasterKeyProvider) -> Outbox:
    codec = Encryption(Keys(master), by_key)
    return Outbox(codecs={"customers": codec})


def send(dsn: str, master: MasterKeyProvider, *keys: str) -> None:
    with psycopg.connect(dsn) as conn:
        for key in keys:
            encrypting(master).send(conn, Message("customers", key=key, body="4711 secret street"))


@pytest.fixture
def registered(database: str) -> str:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES ('customers', 1)")
    return database


@pytest.mark.parametrize("master_id", ["m1", "arn:ours", "arn:evil", "unknown"])
@pytest.mark.parametrize("provider", [lambda: OURS, service])
def test_a_thousand_planted_keys_stop_no_send(
    registered: str,
    logins: Logins,
    caplog: pytest.LogCaptureFixture,
    provider: Callable[[], MasterKeyProvider],
    master_id: str,
) -> None:
    evil, victim = logins.connect("outbox_producer"), logins.make("outbox_producer")
    with evil:
        evil.execute(PLANT, [b"x" * 60, master_id])
        before = evil.execute("SELECT id FROM outbox.subject_key").fetchall()
    with caplog.at_level(logging.WARNING):
        send(victim, provider(), "7", "8", "7", "bystander")
    with psycopg.connect(registered) as conn:
        current = conn.execute(
            "SELECT subject, id FROM outbox.subject_key WHERE retired_at IS NULL "
            "AND subject IN ('customer/7', 'customer/8', 'customer/bystander')"
        ).fetchall()
    assert len(current) == 3
    assert not {key_id for _, key_id in current} & {key_id for (key_id,) in before}
    assert caplog.text.count("is retired") == 2
    assert "customer" not in caplog.text


def test_the_attackers_own_key_encrypts_nothing(registered: str, logins: Logins) -> None:
    key_id, known = uuid4(), b"k" * 32
    with logins.connect("outbox_producer") as evil:
        evil.execute(
            "INSERT INTO outbox.subject_key (id, subject, wrapped, master_id) "
            "VALUES (%s, 'customer/7', %s, 'arn:evil')",
            [key_id, THEIRS.wrap(known, key_id.bytes)],
        )
    send(logins.make("outbox_producer"), service(), "7")
    with psycopg.connect(registered) as conn:
        [(body,)] = conn.execute("SELECT body FROM outbox.message").fetchall()
    assert key_id.bytes not in bytes(body)


def test_a_key_that_is_moved_to_another_subject_is_not_used(registered: str, logins: Logins) -> None:
    """The wrapped bytes are bound to the id, and the id to its subject."""
    victim = logins.make("outbox_producer")
    send(victim, OURS, "evil", "bystander")
    with logins.connect("outbox_operator") as operator:
        operator.execute(
            "UPDATE outbox.subject_key SET subject = 'customer/7' WHERE subject = 'customer/evil'"
        )
        send(victim, OURS, "7", "bystander")
        keys = operator.execute(
            "SELECT count(*), count(retired_at) FROM outbox.subject_key GROUP BY subject ORDER BY subject"
        ).fetchall()
    assert keys == [(2, 1), (1, 0)]


def test_a_key_of_before_that_is_not_bound_still_opens(registered: str) -> None:
    key_id = uuid4()
    with psycopg.connect(registered) as conn:
        conn.execute(
            "INSERT INTO outbox.subject_key (id, subject, wrapped, master_id) VALUES (%s, 'customer/7', %s, 'm1')",
            [key_id, OURS.wrap(b"k" * 32, key_id.bytes)],
        )
        conn.commit()
        send(registered, OURS, "7")
        rows: list[tuple[Any, ...]] = conn.execute("SELECT id, retired_at FROM outbox.subject_key").fetchall()
    assert rows == [(key_id, None)]


def test_a_service_that_is_away_retires_nothing(registered: str) -> None:
    def away(*_: object) -> bytes:
        raise TimeoutError("the service does not answer")

    send(registered, service(), "7")
    with pytest.raises(TimeoutError):
        send(registered, KmsKeys("arn:ours", wrap=OURS.wrap, unwrap=away), "7")
    with psycopg.connect(registered) as conn:
        assert conn.execute("SELECT count(retired_at) FROM outbox.subject_key").fetchone() == (0,)


def test_a_producer_retires_keys_and_revives_none(registered: str, logins: Logins) -> None:
    send(registered, OURS, "7")
    with logins.connect("outbox_producer") as evil:
        evil.execute("SELECT outbox.retire_key(id) FROM outbox.subject_key")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            evil.execute("UPDATE outbox.subject_key SET retired_at = NULL")
    with logins.connect("outbox_reader") as reader, pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.execute("SELECT outbox.retire_key(gen_random_uuid())")
    send(logins.make("outbox_producer"), OURS, "7")


def test_a_key_service_opens_only_what_it_was_given() -> None:
    asked: list[str] = []

    def unwrap(key_id: str, wrapped: bytes, context: bytes) -> bytes:
        asked.append(key_id)
        return bytes(32)

    keys = KmsKeys("arn:new", wrap=OURS.wrap, unwrap=unwrap, older=("arn:old",))
    for key_id in ("arn:new", "arn:old"):
        keys.unwrap(key_id, b"", b"")
    with pytest.raises(MasterKeyError, match=r"'arn:evil' was not given.*older="):
        keys.unwrap("arn:evil", b"", b"")
    assert asked == ["arn:new", "arn:old"]
