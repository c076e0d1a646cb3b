"""Codecs change a body between `send` and the listener: encryption, large bodies in a store, schemas of a registry.

    outbox = Outbox("crm", codecs={"customers": encryption})
    consumer = PushConsumer("mails", {"customers": "*"}, listener, codecs={"customers": encryption}, …)

`send` encodes before it writes the row, a consumer decodes before it calls its listener. In between, in PostgreSQL,
Kafka and the warehouse, is what the codec has made. See `encryption`, `claim_check` and `schemas` in this package, each
of which needs its own extra or none.
"""

from outbox.codecs.codec import Chain, Codec, Encoded, Received
from outbox.codecs.errors import (
    BodyNotEncodedError,
    CodecError,
    ErasedError,
    MasterKeyError,
    MissingObjectError,
    RegistryError,
    RegistryUnavailableError,
    SchemaMismatchError,
    SchemaNotFoundError,
    SchemaNotLoadedError,
    SchemaRefusedError,
    UndecodableBodyError,
    UnknownKeyError,
)

__all__ = [
    "BodyNotEncodedError",
    "Chain",
    "Codec",
    "CodecError",
    "Encoded",
    "ErasedError",
    "MasterKeyError",
    "MissingObjectError",
    "Received",
    "RegistryError",
    "RegistryUnavailableError",
    "SchemaMismatchError",
    "SchemaNotFoundError",
    "SchemaNotLoadedError",
    "SchemaRefusedError",
    "UndecodableBodyError",
    "UnknownKeyError",
]
