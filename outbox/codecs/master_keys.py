"""Master keys wrap the data keys of subjects, so that the database alone, or a dump of it, opens nothing.

`MasterKeys.read("file:/run/secrets/outbox-master")` or `"env:OUTBOX_MASTER_KEYS"` reads lines of `id:key`, with the key
as Base64 of 32 bytes. The first line wraps new data keys; the others only open what they wrapped before. A key
management service takes part through `KmsKeys`, by two callables. Neither a repr nor an error shows key material.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from outbox.codecs.errors import MasterKeyError
from outbox.extras import needs

with needs("encryption", "cryptography"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE = 12
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
MAKE = 'echo "2026-11:$(openssl rand -base64 32)"'
"""The shell's command that makes a line."""


class MasterKeyProvider(Protocol):
    """Wraps and unwraps data keys; `context` must be the same for both, and is not secret."""

    @property
    def current(self) -> str:
        """The id of the master key that wraps new data keys; it is stored with each of them."""
        ...

    @property
    def blocks(self) -> bool:
        """Whether a call waits for a network."""
        ...

    def wrap(self, data_key: bytes, context: bytes) -> bytes:
        """Wrap a data key by the current master key."""
        ...

    def unwrap(self, master_id: str, wrapped: bytes, context: bytes) -> bytes:
        """Open what the master key of this id has wrapped.

        Raises:
            MasterKeyError: it is not configured, or does not open it.
        """
        ...


class MasterKeys:
    """Master keys in the memory of this process: AES-256-GCM."""

    blocks = False

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """Take 32 bytes for each id; the first one wraps new data keys.

        Raises:
            MasterKeyError: no key is given, an id has other characters, or a key another length.
        """
        if not keys:
            raise MasterKeyError(f"no master key is given; make one: {MAKE}")
        for master_id, key in keys.items():
            if not _ID.fullmatch(master_id):
                # Not repeated: a key without an id in front of it would be shown.
                raise MasterKeyError(
                    "the id of a master key is not 1 to 64 characters of a-z, A-Z, 0-9, '.', '_' and '-'; "
                    f"make a line: {MAKE}"
                )
            if len(key) != 32:
                raise MasterKeyError(f"master key {master_id!r} does not have 32 bytes; make one: {MAKE}")
        self._keys = {master_id: AESGCM(key) for master_id, key in keys.items()}
        self.current = next(iter(keys))

    @classmethod
    def read(cls, reference: str) -> MasterKeys:
        """Read master keys by reference: `file:PATH` or `env:NAME`.

        Raises:
            MasterKeyError: the reference or what it leads to is wrong; the text states which line, never its content.
        """
        scheme, _, place = reference.partition(":")
        if scheme == "file" and place:
            try:
                text = Path(place).read_text(encoding="ascii")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "it is not text"
                raise MasterKeyError(f"cannot read master keys from {place}: {reason}") from None
        elif scheme == "env" and place:
            if place not in os.environ:
                raise MasterKeyError(f"cannot read master keys: the environment has no variable {place}")
            text = os.environ[place]
        else:
            raise MasterKeyError(
                "the reference to the master keys is neither file:PATH nor env:NAME; keys themselves are not given in "
                "options or code"
            )
        return cls(_parse(text, reference))

    def wrap(self, data_key: bytes, context: bytes) -> bytes:
        """See `MasterKeyProvider`."""
        nonce = os.urandom(_NONCE)
        return nonce + self._keys[self.current].encrypt(nonce, data_key, context)

    def unwrap(self, master_id: str, wrapped: bytes, context: bytes) -> bytes:
        """See `MasterKeyProvider`."""
        key = self._keys.get(master_id)
        if key is None:
            raise MasterKeyError(
                f"master key {master_id!r} is not configured; configured: {', '.join(self._keys)}. Add its line, or "
                "wrap the data keys again where it is: outbox key rewrap"
            )
        try:
            return key.decrypt(wrapped[:_NONCE], wrapped[_NONCE:], context)
        except (InvalidTag, ValueError):
            raise MasterKeyError(
                f"master key {master_id!r} does not open a data key that was wrapped under this id; it is another key "
                "of the same id, or the row was changed"
            ) from None

    def __repr__(self) -> str:
        return f"MasterKeys({', '.join(self._keys)})"


class KmsKeys:
    """A key management service, by two callables of yours; they are called with a data key, never with a body.

    A row of `outbox.subject_key` states which key has wrapped it, and every producer may write rows. So only keys that
    are named here are used: else a body could be encrypted by a data key that somebody else's key opens.
    """

    blocks = True

    def __init__(
        self,
        key_id: str,
        *,
        wrap: Callable[[bytes, bytes], bytes],
        unwrap: Callable[[str, bytes, bytes], bytes],
        older: Collection[str] = (),
    ) -> None:
        """Take what calls the service, with a time-out: `send` waits for `wrap` when a subject is new.

        Args:
            key_id: The service's key that wraps new data keys; it is stored with each of them.
            wrap: Called with a data key and its context (the additional authenticated data).
            unwrap: Called with the id of the service's key, what it wrapped, and the same context. It raises
                `MasterKeyError` for what the key does not open; anything else means that the service failed.
            older: Keys of the service that only open what they wrapped before.

        Raises:
            MasterKeyError: the id is empty or too long.
        """
        if isinstance(older, str) or not all(1 <= len(each) <= 255 for each in (key_id, *older)):
            raise MasterKeyError("key_id, or one of older, has not 1 to 255 characters")
        self.current = key_id
        self._given = frozenset((key_id, *older))
        self.wrap, self._unwrap = wrap, unwrap

    def unwrap(self, master_id: str, wrapped: bytes, context: bytes) -> bytes:
        """See `MasterKeyProvider`."""
        if master_id not in self._given:
            raise MasterKeyError(
                f"the key service's key {master_id!r} was not given to this process; if it is yours, add it: "
                "KmsKeys(…, older=[…])"
            )
        return self._unwrap(master_id, wrapped, context)

    def __repr__(self) -> str:
        return f"KmsKeys({self.current})"


def _parse(text: str, reference: str) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.split(), 1):
        master_id, colon, encoded = line.partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            key = b""
        if not colon or len(key) != 32 or not _ID.fullmatch(master_id) or master_id in keys:
            raise MasterKeyError(
                f"{reference}: line {number} is not `id:key` with an id of its own and the Base64 of 32 bytes; make a "
                f"line: {MAKE}"
            )
        keys[master_id] = key
    return keys
