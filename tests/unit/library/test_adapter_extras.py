"""What needs a library that is not installed names the extra that brings it."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
sys.modules[{library!r}] = None
try:
    import {module}
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("outbox.adapters.asyncpg", "asyncpg", "asyncpg"),
        ("outbox.adapters.django", "django", "django"),
        ("outbox.adapters.sqlalchemy", "sqlalchemy", "sqlalchemy"),
        ("outbox.codecs.encryption", "cryptography", "encryption"),
        ("outbox.codecs.schemas.registry", "confluent_kafka", "schema-registry"),
        ("outbox.codecs.schemas", "confluent_kafka", "schema-registry"),
        ("outbox.codecs.schemas", "fastavro", "schema-registry"),
        ("outbox.codecs.schemas", "google.protobuf", "schema-registry"),
        ("outbox.codecs.schemas", "httpx2", "schema-registry"),
        ("outbox.codecs.schemas", "jsonschema", "schema-registry"),
        ("outbox.opentelemetry", "opentelemetry", "opentelemetry"),
    ],
)
def test_a_missing_library_is_reported_with_its_extra(module: str, library: str, extra: str) -> None:
    code = CODE.format(module=module, library=library)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.endswith(f"is not installed; run: pip install 'outbox-kafka[{extra}]'\n")
