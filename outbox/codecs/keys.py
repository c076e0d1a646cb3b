"""The data keys of subjects: made and read in `outbox.subject_key`, and remembered for a bounded time.

Which key a new body gets is read in the transaction that sends, each time. Only the bytes of a key are remembered, by
its id. What happens when a process dies or is late between any two lines:

- A key is made in the transaction that sends. If that is rolled back, the key was never there. Its bytes may be
  remembered, but no transaction reads its id again.
- Two transactions make the first key of a subject at once: the second waits for the end of the first in `add`, then
  reads its key, or makes its own.
- Two transactions make the first keys of two subjects in opposite order: a deadlock, and PostgreSQL ends one of them.
- A key is destroyed after it was read here and before this transaction commits: the message is erased with it, as if it
  had been sent just before. A transaction that reads the key afterwards makes a new one.
- A consumer that remembers the bytes of a destroyed key can read bodies for `cache_seconds` more, and no longer.
- A rewrap changes a row between two reads: both have the same data key.
- A current key does not open, because somebody without a master key wrote it, or it was moved to another subject: the
  transaction that sends retires it and makes another one. If that is rolled back, the next one does the same. Two that
  send at once wait for each other in `retire`, as in `add`. A key service that fails retires nothing.

The id of a key is bound to its subject: its second half is a digest of the first half and the subject (`_new_id`), and
the wrapped bytes are bound to the id. Older keys have random ids (UUID version 4) and open as before.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from outbox import sessions
from outbox.codecs.errors import ErasedError, MasterKeyError, UnknownKeyError
from outbox.codecs.master_keys import MasterKeyProvider
from outbox.drivers import psycopg_sync
from outbox.errors import ConfigurationError
from outbox.statements import Plan, Rows, Statement, load
from outbox.validation import text

log = logging.getLogger("outbox.keys")

_SQL = load("keys.sql")
_ROUNDS = 5
"""A key that is made and destroyed again while this transaction waits for it, so often in a row, is given up."""
_BOUND = 8
"""The version of ids that are bound to a subject."""
MOST_REMEMBERED = 10_000
ConnectToKeys = Callable[[], psycopg.Connection[Any]]


class DataKey(NamedTuple):
    """A key that encrypts bodies."""

    id: UUID
    secret: bytes

    def __repr__(self) -> str:
        return f"DataKey({self.id})"

    @property
    def digest_secret(self) -> bytes:
        """What the digests of idempotent sends are mixed with."""
        return hmac.digest(self.secret, b"outbox: digest of an idempotent send", "sha256")


class Keys:
    """The data keys of one database; one object serves any number of threads."""

    def __init__(
        self,
        master: MasterKeyProvider,
        *,
        cache_seconds: float = 60.0,
        database: str | ConnectToKeys | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Configure the keys; nothing is read yet.

        Args:
            master: Wraps the data keys.
            cache_seconds: For how long a key's bytes are remembered: how long after its destruction a process may still
                read bodies.
            database: Where keys are read for consumers: the database of the service that sends, if the consumer has
                another one. A connection string, or a callable that returns a `psycopg.Connection`. None: the
                connection that the listener has.
            clock: For tests.

        Raises:
            ConfigurationError: naming the argument.
        """
        if not 0 <= cache_seconds <= 86_400:
            raise ConfigurationError(f"cache_seconds: {cache_seconds!r}; allowed: 0 to 86400 seconds")
        if database is not None and not isinstance(database, str) and not callable(database):
            raise ConfigurationError(
                f"database: is {type(database).__name__}; allowed: a connection string, a callable or None"
            )
        self._master, self._seconds, self._clock = master, cache_seconds, clock
        self._connect: ConnectToKeys | None = (
            (lambda: sessions.connect(database, "outbox keys")) if isinstance(database, str) else database
        )
        self._known: OrderedDict[UUID, tuple[float, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def blocks(self) -> bool:
        """Whether a call may wait for a network other than the database's."""
        return self._master.blocks

    def current(self, subject: str) -> Plan[DataKey]:
        """Return the key for new bodies of a subject, and make it if the subject has no key, or none that opens.

        Raises:
            InvalidMessageError: the subject is not text of 1 to 255 characters.
        """
        text("subject", subject)
        for _ in range(_ROUNDS):
            rows = yield Statement(_SQL["current"], (subject,))
            if rows:
                found, wrapped, master_id = rows[0]
                try:
                    return DataKey(found, self._opened(found, subject, wrapped, master_id))
                except MasterKeyError as error:
                    log.warning("key %s cannot encrypt and is retired, a new one is made: %s", found, error)
                    yield Statement(_SQL["retire"], (str(found),))
            made, secret = _new_id(subject), os.urandom(32)
            wrapped = self._master.wrap(secret, made.bytes)
            if (yield Statement(_SQL["add"], (str(made), subject, wrapped, self._master.current))):
                self._remember(made, secret)
                return DataKey(made, secret)
        raise UnknownKeyError(
            "the keys of one subject are made and destroyed again and again by other sessions; try again later"
        )

    def find(self, key_id: UUID) -> Plan[DataKey]:
        """Return the key of a body.

        Raises:
            ErasedError: it was destroyed.
            UnknownKeyError: there is no such key.
            MasterKeyError: the master key does not open it.
        """
        secret = self._recall(key_id)
        if secret is None:
            if self._connect is None:
                rows = yield Statement(_SQL["find"], (str(key_id),))
            else:
                rows = self._read_elsewhere(self._connect, key_id)
            if not rows:
                raise UnknownKeyError(
                    f"no key has the id {key_id}; keys are in outbox.subject_key of the database of the service that "
                    "sends: for a consumer with another database give Keys(…, database=…)"
                )
            subject, wrapped, master_id, destroyed_at = rows[0]
            if wrapped is None:
                raise ErasedError(f"key {key_id} was destroyed at {destroyed_at}: the body is erased")
            secret = self._opened(key_id, subject, wrapped, master_id)
        return DataKey(key_id, secret)

    def _opened(self, key_id: UUID, subject: str, wrapped: bytes, master_id: str) -> bytes:
        if key_id.version == _BOUND and key_id != _bound_id(key_id.bytes[:8], subject):
            raise MasterKeyError(f"key {key_id} was made for another subject; the row was changed")
        secret = self._recall(key_id)
        if secret is None:
            secret = self._master.unwrap(master_id, bytes(wrapped), key_id.bytes)
            self._remember(key_id, secret)
        return secret

    def _recall(self, key_id: UUID) -> bytes | None:
        with self._lock:
            until, secret = self._known.get(key_id, (0.0, b""))
            if not secret:
                return None
            if self._clock() < until:
                self._known.move_to_end(key_id)
                return secret
            del self._known[key_id]
            return None

    def _remember(self, key_id: UUID, secret: bytes) -> None:
        if not self._seconds:
            return
        with self._lock:
            self._known[key_id] = (self._clock() + self._seconds, secret)
            self._known.move_to_end(key_id)
            while len(self._known) > MOST_REMEMBERED:
                self._known.popitem(last=False)

    @staticmethod
    def _read_elsewhere(connect: ConnectToKeys, key_id: UUID) -> Rows:
        """Read a key on a connection of its own: once per key and `cache_seconds`."""
        with connect() as conn:
            conn.autocommit = False
            return psycopg_sync.run(conn, _one(Statement(_SQL["find"], (str(key_id),))))


def _new_id(subject: str) -> UUID:
    """Return an id for a new key, bound to its subject."""
    return _bound_id(os.urandom(8), subject)


def _bound_id(salt: bytes, subject: str) -> UUID:
    """Return the id of a salt and a subject: a UUID of version 8, with 60 bits of salt and 62 of a digest."""
    salt = salt[:6] + bytes([_BOUND << 4 | salt[6] & 0x0F, salt[7]])
    digest = hashlib.sha256(b"outbox: id of a key" + salt + subject.encode()).digest()
    return UUID(bytes=salt + bytes([0x80 | digest[0] & 0x3F]) + digest[1:8])


def _one(statement: Statement) -> Plan[Rows]:
    return (yield statement)
