"""What the tests of schemas ask for: a registry, and what the tests of consumers have."""

from __future__ import annotations

from tests.integration.inbox.conftest import inbox
from tests.support.schema_registry import registry_server, schema_registry, schema_topic

__all__ = ["inbox", "registry_server", "schema_registry", "schema_topic"]
