"""Encrypts bodies by a key per subject, such as a customer: destroying the key erases the bodies, wherever they are.

    keys = Keys(MasterKeys.read("file:/run/secrets/outbox-master"))
    encryption = Encryption(keys, subject=lambda message: f"customer/{message.key}")
    outbox = Outbox("crm", codecs={"customers": encryption})

A body becomes `0x01 | flags | key id (16) | nonce (12) | ciphertext and tag`, 46 bytes more, by AES-256-GCM. Topic,
record key, key id and flags are authenticated with it, and the message id if the application has chosen it (flag 1): a
body that is moved to another topic, key or such message is refused. Key, headers, tags and index keys of the message
stay readable: put no personal data into them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from uuid import UUID

from outbox.codecs.codec import Codec, Encoded, Received
from outbox.codecs.errors import BodyNotEncodedError, UndecodableBodyError
from outbox.codecs.keys import Keys
from outbox.codecs.master_keys import KmsKeys, MasterKeyProvider, MasterKeys
from outbox.errors import ConfigurationError
from outbox.extras import needs
from outbox.message import Message
from outbox.statements import Plan

with needs("encryption", "cryptography"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["Encryption", "Keys", "KmsKeys", "MasterKeyProvider", "MasterKeys"]

HEADER = "encryption"
KEY_ID_HEADER = "encryption-key-id"
FORM = "aes-256-gcm/1"
_VERSION = 1
_BINDS_ID = 1
_HEAD, _NONCE, _TAG = 18, 12, 16
Subject = Callable[[Message], str]


class Encryption(Codec):
    """Encrypts the bodies of a topic."""

    header_names = frozenset({HEADER, KEY_ID_HEADER})

    def __init__(
        self,
        keys: Keys,
        subject: str | Subject,
        *,
        accept_plain: bool = False,
        reads_copies: bool = False,
    ) -> None:
        """Configure the encryption of one or more topics.

        Args:
            keys: Where the data keys are.
            subject: Whom a body is about: a function of the message, or one name for all messages of the topic. Erasure
                is by subject. It is stored in clear until its key is destroyed: use a number, not a name.
            accept_plain: A consumer takes bodies without the header as they are, for a topic that had plain bodies.
            reads_copies: A consumer of a dead-letter topic: a copy is bound to the topic and the id that its headers
                `dlq-topic` and `dlq-message-id` name.

        Raises:
            ConfigurationError: naming the argument.
        """
        if not isinstance(keys, Keys):
            raise ConfigurationError(
                f"keys: is {type(keys).__name__}; allowed: outbox.codecs.encryption.Keys"
            )
        given: object = subject
        if not callable(given) and (not isinstance(given, str) or not given):
            raise ConfigurationError(
                f"subject: is {'empty' if given == '' else type(given).__name__}; allowed: a name, or a function of "
                "the message that returns one"
            )
        self._keys, self._subject = keys, subject
        self._accepts_plain, self._reads_copies = accept_plain, reads_copies
        self.blocks = keys.blocks

    def encode(self, message: Message, body: bytes) -> Plan[Encoded]:
        """Encrypt a body by the key of its subject, which is made if the subject has no key.

        Raises:
            InvalidMessageError: the subject is not text of 1 to 255 characters.
            MasterKeyError: the master key does not open the key.
        """
        subject: Any = self._subject(message) if callable(self._subject) else self._subject
        key = yield from self._keys.current(subject)
        flags = 0 if message.message_id is None else _BINDS_ID
        head = bytes([_VERSION, flags]) + key.id.bytes
        nonce = os.urandom(_NONCE)
        bound = _bound(head, message.topic, message.key_bytes, message.message_id)
        sealed = head + nonce + AESGCM(key.secret).encrypt(nonce, body, bound)
        return Encoded(sealed, {HEADER: FORM, KEY_ID_HEADER: str(key.id)}, key.digest_secret)

    def decode(self, message: Received, body: bytes) -> Plan[bytes]:
        """Decrypt a body.

        Raises:
            ErasedError: its key was destroyed.
            BodyNotEncodedError: it has no header, and plain bodies are not accepted.
            UndecodableBodyError: it was changed, or made for another topic, key or message.
            UnknownKeyError, MasterKeyError: see `Keys.find`.
        """
        form = message.header(HEADER)
        if form is None:
            if self._accepts_plain:
                return body
            raise BodyNotEncodedError(
                f"the message has no header {HEADER!r}, so its body is not encrypted; to take plain bodies of topic "
                f"{message.topic!r}: Encryption(…, accept_plain=True)"
            )
        if form != FORM.encode() or len(body) < _HEAD + _NONCE + _TAG or body[0] != _VERSION:
            raise UndecodableBodyError(
                f"the body is not in the form that this version reads ({FORM}): header {HEADER!r} is {form[:40]!r}, "
                f"the body has {len(body):,} bytes"
            )
        head, nonce, sealed = body[:_HEAD], body[_HEAD : _HEAD + _NONCE], body[_HEAD + _NONCE :]
        key = yield from self._keys.find(UUID(bytes=head[2:]))
        topic, message_id = self._origin(message)
        bound = _bound(head, topic, message.key, message_id if head[1] & _BINDS_ID else None)
        try:
            return AESGCM(key.secret).decrypt(nonce, sealed, bound)
        except InvalidTag:
            raise UndecodableBodyError(
                f"the body does not fit its key {key.id}: it was changed, or made for another topic, record key or "
                f"message than {topic!r}, {message_id}. For copies of dead letters: Encryption(…, reads_copies=True)"
            ) from None

    def _origin(self, message: Received) -> tuple[str, UUID]:
        """Return topic and id to which the body is bound."""
        if self._reads_copies:
            topic, message_id = message.header("dlq-topic"), message.header("dlq-message-id")
            if topic is not None and message_id is not None:
                try:
                    return topic.decode(), UUID(message_id.decode())
                except ValueError:
                    raise UndecodableBodyError(
                        "the headers 'dlq-topic' and 'dlq-message-id' of the copy cannot be read"
                    ) from None
        return message.topic, message.message_id


def _bound(head: bytes, topic: str, key: bytes | None, message_id: UUID | None) -> bytes:
    """Return what is authenticated with a body; lengths in front, so that no two places run together."""
    parts = (head, topic.encode(), key, None if message_id is None else message_id.bytes)
    return b"".join(b"-" if part is None else b"%d:%b" % (len(part), part) for part in parts)
