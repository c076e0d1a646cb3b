"""What a JSON Schema refers to comes from the registry, by name; an address in it is never fetched.

Confluent's (de)serializers fetch each absolute `$ref` that is not a registered reference, in the transaction that sends
or reads. A user who may register a schema could so make every service ask any address.
"""

from __future__ import annotations

from typing import Any

from outbox.codecs.schemas.registry import PACKAGES
from outbox.extras import needs

with needs("schema-registry", "jsonschema", "referencing", *PACKAGES):
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from referencing import Registry


class ForeignReferenceError(Exception):
    """A schema refers to an address that is not a registered reference."""


class ClosedSerializer(JSONSerializer):
    """Confluent's serializer, which fetches no address that a schema names."""

    def _get_parsed_schema(self, schema: Any) -> Any:
        parsed, references = super()._get_parsed_schema(schema)
        return parsed, _closed(references)


class ClosedDeserializer(JSONDeserializer):
    """Confluent's deserializer, which fetches no address that a schema names."""

    def _get_parsed_schema(self, schema: Any) -> Any:
        parsed, references = super()._get_parsed_schema(schema)
        return parsed, _closed(references)


def foreign_reference(error: BaseException) -> str | None:
    """Return the reference for which an error of (de)serialization stands, or None."""
    here: BaseException | None = error
    while here is not None:
        if isinstance(here, ForeignReferenceError):
            return str(here)
        here = here.__cause__ or here.__context__
    return None


def _closed(references: Any) -> Any:
    if references is None:
        return None
    made: Any = Registry(retrieve=_refuse)  # type: ignore[call-arg]
    return made.with_resources(references.items())


def _refuse(uri: str) -> Any:
    raise ForeignReferenceError(uri)
