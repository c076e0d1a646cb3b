"""What goes wrong with a codec; none of these names a body, a key's bytes or a password."""

from __future__ import annotations

from outbox.errors import OutboxError


class CodecError(OutboxError):
    """Base of what codecs raise; at `send` nothing of the message was written."""


class UndecodableBodyError(CodecError):
    """A body is damaged, was made for another place, or is not in the form that its headers state."""


class BodyNotEncodedError(UndecodableBodyError):
    """A body came without its codec's header, and the codec does not accept plain bodies."""


class ErasedError(CodecError):
    """The key of a body was destroyed, so it can never be read again. Consumers discard such a message."""


class MissingObjectError(CodecError):
    """The body of a message is in a store, and the store does not have it."""


class UnknownKeyError(CodecError):
    """The key of a body is not in the table, not even as destroyed: probably this is another database."""


class MasterKeyError(CodecError):
    """A master key cannot be read, is not configured, or does not open what was wrapped under its id."""


class RegistryError(CodecError):
    """The schema registry refused a request, such as one without the right password."""


class RegistryUnavailableError(RegistryError):
    """The schema registry cannot be reached, did not reply in time, or replied that it cannot work now."""


class SchemaNotFoundError(RegistryError):
    """The schema registry does not know the subject, the schema or the id."""


class SchemaRefusedError(RegistryError):
    """The schema registry does not register a schema: it is not valid, or not compatible with earlier versions."""


class SchemaNotLoadedError(CodecError):
    """A schema is used whose id `load` has not read yet; a send never asks the registry."""


class SchemaMismatchError(CodecError):
    """A value does not fit its schema."""
