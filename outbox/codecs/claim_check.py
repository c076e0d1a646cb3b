"""Keeps large bodies in a store, and sends a reference to them; consumers fetch them before the listener.

    large = ClaimCheck(DirectoryStore("/mnt/bodies"), over=500_000)
    outbox = Outbox("media", codecs={"images": large})

A body above the limit is written to the store, and the message has an empty body and the headers `claim-check` (the
name of the object), `claim-check-bytes` and `claim-check-sha256`. Smaller bodies stay in the message.

The object is written while the transaction that sends is open, before its row. If the process dies or the transaction
is rolled back afterwards, the object is an orphan: nothing refers to it, and it goes with its day (`drop_days`, or an
expiry rule of the store). The other way round cannot happen: a message that is committed refers to a complete object.
With `Chain(Encryption(…), ClaimCheck(…))` the store has the encrypted body, so destroying its key erases it there, too.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from uuid import uuid4

from outbox.codecs.codec import Codec, Encoded, Received
from outbox.codecs.errors import MissingObjectError, UndecodableBodyError
from outbox.codecs.stores import DirectoryStore, ObjectStore, is_object_name
from outbox.errors import ConfigurationError
from outbox.message import Message
from outbox.statements import Plan

__all__ = ["ClaimCheck", "DirectoryStore", "ObjectStore"]

HEADER = "claim-check"
BYTES_HEADER = "claim-check-bytes"
SHA256_HEADER = "claim-check-sha256"
DEFAULT_OVER = 512 * 1024


class ClaimCheck(Codec):
    """Keeps the large bodies of a topic in a store."""

    header_names = frozenset({HEADER, BYTES_HEADER, SHA256_HEADER})
    blocks = True

    def __init__(self, store: ObjectStore, *, over: int = DEFAULT_OVER) -> None:
        """Take a store.

        Args:
            store: Keeps the bodies.
            over: A body with more bytes goes to the store.

        Raises:
            ConfigurationError: naming the argument.
        """
        if not all(callable(getattr(store, name, None)) for name in ("put", "get")):
            raise ConfigurationError(
                f"store: is {type(store).__name__}; allowed: an object with `put` and `get`, such as a DirectoryStore"
            )
        if over < 0:
            raise ConfigurationError(f"over: {over}; allowed: bytes, 0 or more")
        self._store, self._over = store, over

    def encode(self, message: Message, body: bytes) -> Plan[Encoded]:
        """Put a large body into the store; whatever the store raises passes through, and nothing is sent."""
        yield from ()
        if len(body) <= self._over:
            return Encoded(body)
        name = f"{datetime.now(UTC).date()}/{uuid4()}"
        self._store.put(name, body)
        digest = hashlib.sha256(body).hexdigest()
        return Encoded(b"", {HEADER: name, BYTES_HEADER: str(len(body)), SHA256_HEADER: digest})

    def decode(self, message: Received, body: bytes) -> Plan[bytes]:
        """Fetch a body that is in the store.

        Raises:
            MissingObjectError: the store does not have it.
            UndecodableBodyError: the reference cannot be read, or the object was changed.
        """
        yield from ()
        reference = message.header(HEADER)
        if reference is None:
            return body
        name = reference.decode(errors="replace")
        if not is_object_name(name):
            raise UndecodableBodyError(
                f"header {HEADER!r} is {name[:80]!r}; expected: a day and a UUID, such as 2026-11-25/3f2b…"
            )
        try:
            found = self._store.get(name)
        except KeyError:
            raise MissingObjectError(
                f"the store has no object {name}: it expired before its message, or this is another store"
            ) from None
        stated = message.header(SHA256_HEADER)
        if stated is None or hashlib.sha256(found).hexdigest().encode() != stated:
            raise UndecodableBodyError(
                f"object {name} was changed: its {len(found):,} bytes have another SHA-256 than {SHA256_HEADER!r}"
            )
        return found
