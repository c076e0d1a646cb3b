"""A schema that names an address makes nobody ask it, neither who sends nor who reads."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.schema_registry.common import json_schema

from outbox.codecs.errors import SchemaMismatchError, UndecodableBodyError
from outbox.codecs.schemas import JsonSchema, SchemaRegistry

BODY = b"\0\0\0\0\7" + b'{"a": {}}'
PUBLIC = "https://example.com/schemas/a.json"


def schema(reference: str) -> str:
    return json.dumps(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "Order",
            "type": "object",
            "properties": {"a": {"$ref": reference}, "b": {"$ref": "#/definitions/own"}},
            "definitions": {"own": {"type": "integer"}},
        }
    )


@contextmanager
def registry_with(text: str) -> Iterator[SchemaRegistry]:
    """A registry whose only schema is this one."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            found = {"schema": text, "schemaType": "JSON", "id": 7, "subject": "orders-value", "version": 1}
            body = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield SchemaRegistry(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("reference", [PUBLIC, "http://127.0.0.1:9/latest/meta-data"])
def test_an_address_in_a_schema_is_refused_by_name_and_not_fetched(
    reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    def get(url: str, **_: Any) -> Any:
        fetched.append(url)
        raise OSError("not here")

    text = schema(reference)
    with registry_with(text) as registry:
        own = JsonSchema(registry, "orders", text)
        own.load()
        monkeypatch.setattr(json_schema.httpx, "get", get)
        for reader in (JsonSchema(registry, "orders"), own):
            with pytest.raises(UndecodableBodyError, match="schema of topic 'orders' refers to") as read:
                reader.deserialize(BODY)
            assert reference in str(read.value)
        with pytest.raises(SchemaMismatchError, match=r"never fetched.*references=") as sent:
            own.serialize({"a": {}})
        assert reference in str(sent.value)
        assert own.serialize({"b": 1}) is not None, "what does not need it goes on"
    assert not fetched
