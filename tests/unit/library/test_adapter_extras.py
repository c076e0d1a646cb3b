"""What needs a library that is not installed names the extra that brings it."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from outbox import extras
from outbox.extras import install_line

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
    assert ran.stdout.endswith(f"is not installed; run: {install_line(extra)}\n")


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, "pip install 'outbox-kafka[relay]'"),
        ("not json", "pip install 'outbox-kafka[relay]'"),
        (
            {"url": "file:///src/outbox", "dir_info": {"editable": True}},
            "pip install -e '/src/outbox[relay]'",
        ),
        (
            {"url": "file:///src/outbox", "dir_info": {}},
            "pip install 'outbox-kafka[relay] @ file:///src/outbox'",
        ),
        (
            {"url": "file:///tmp/outbox_kafka-1-py3-none-any.whl", "archive_info": {}},
            "pip install 'outbox-kafka[relay] @ file:///tmp/outbox_kafka-1-py3-none-any.whl'",
        ),
        (
            {"url": "https://git.example/outbox", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'outbox-kafka[relay] @ git+https://git.example/outbox@abc'",
        ),
    ],
)
def test_an_install_line_names_the_place_from_which_the_package_came(
    monkeypatch: pytest.MonkeyPatch, origin: object, line: str
) -> None:
    text = origin if isinstance(origin, str | None) else json.dumps(origin)
    monkeypatch.setattr(extras, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))
    assert install_line("relay") == line
    assert install_line("relay", upgrade=True) == line.replace("install", "install --upgrade", 1)
