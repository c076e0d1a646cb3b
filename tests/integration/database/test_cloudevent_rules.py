"""The table's rules for CloudEvents are the library's: one list of headers, asked of both."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from outbox import Message
from outbox.errors import InvalidMessageError

Headers = dict[str, Any]
EVENT: Headers = {"ce_specversion": "1.0", "ce_type": "t", "ce_source": "/s"}
TIMES = ["2026-11-25T12:00:00Z", "2026-11-25t12:00:00.123456+05:30", "2026-02-29T23:59:60z"]
ACCEPTED: list[Headers] = [
    EVENT,
    {"content-type": "application/cloudevents+json"},
    {"CE_type": "x", "ce": "x", "c": None, "ce-type": "x", "content-type": "no media type"},
    *({**EVENT, "ce_time": time} for time in TIMES),
    *({**EVENT, "ce_source": source} for source in ("urn:x:1", "//h/p?q#f", "a%20b", "[::1]", "-")),
    *({**EVENT, "ce_dataschema": uri} for uri in ("https://h/s.json", "urn:x", "a+b-c.d:")),
    *({**EVENT, "content-type": kind} for kind in ("a/b", "a/b+c;charset=utf-8", "a/b ; x", "a/vnd.b-1")),
    {**EVENT, "ce_subject": "订单 \\ \" 1", "ce_id": "e-1", "ce_9lives": "x", "other": None, "x\n": "\n"},
]  # fmt: skip
REFUSED: list[Headers] = [
    *({name: value for name, value in EVENT.items() if name != left_out} for left_out in EVENT),
    *({**EVENT, name: bad} for name in EVENT for bad in ("", None, "a\tb")),
    {"ce_id": "only"},
    {**EVENT, "ce_specversion": "0.3"},
    {**EVENT, "ce_specversion": "1.0\n"},
    *({**EVENT, "ce_source": bad} for bad in ("a b", "<x>", "/订单", "a\\b", '"')),
    *({**EVENT, "ce_dataschema": bad} for bad in ("/s.json", "1a:b", "https://h/a b", ":x")),
    *({**EVENT, "ce_time": bad} for bad in ("now", "2026-11-25", "2026-13-01T00:00:00Z", "2026-11-25T24:00:00Z")),
    *({**EVENT, "ce_time": bad} for bad in ("2026-11-25 12:00:00Z", "2026-11-25T12:00:00", "２026-11-25T12:00:00Z")),
    *({**EVENT, "content-type": bad} for bad in ("json", "", "a/b; \n", "application/cloudevents", "a b/c")),
    {**EVENT, "content-type": "Application/CloudEvents+JSON; charset=utf-8"},
    *({**EVENT, name: "x"} for name in ("ce_", "ce_A", "ce_a-b", "ce_a_b", "ce_ü", "ce_data", "ce_datacontenttype")),
    *({**EVENT, "ce_subject": bad} for bad in ("", None, "\x7f", "\u0085", "a\nb")),
    {**EVENT, "ce_id": ""},
]  # fmt: skip


def taken_by_library(headers: Headers) -> bool:
    try:
        Message("orders", headers=headers)
    except InvalidMessageError:
        return False
    return True


def rule_of_table(connection: psycopg.Connection[Any], headers: Headers) -> str | None:
    """The rule that refuses these headers, and whether its message names a header; None: they are taken."""
    try:
        with connection.transaction():
            connection.execute("SELECT outbox.send('orders', 'x', headers => %s)", [Jsonb(headers)])
    except psycopg.errors.CheckViolation as error:
        is_named = any(name in (error.diag.message_primary or "") for name in ("ce_", "content-type"))
        return f"{error.diag.constraint_name} {is_named}"
    return None


@pytest.mark.feature("S-70")
def test_the_library_and_the_table_take_the_same_events(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("SET ROLE outbox_producer")
        both = [
            (taken_by_library(headers), rule_of_table(connection, headers), headers)
            for headers in (*ACCEPTED, *REFUSED)
        ]
    assert [headers for library, _, headers in both if library] == ACCEPTED
    assert [headers for _, rule, headers in both if rule is None] == ACCEPTED
    assert {rule for _, rule, _ in both if rule is not None} == {"message_cloudevent_is_complete True"}


def test_the_table_counts_what_the_relay_adds(database: str) -> None:
    sizes = []
    with psycopg.connect(database) as connection:
        for headers in (EVENT, {**EVENT, "ce_id": "i" * 36, "ce_time": "2026-11-25T12:00:00.123Z"}):
            row = connection.execute(
                "INSERT INTO outbox.message (topic, headers) VALUES ('o', %s) RETURNING outbox.record_size(message)",
                [Jsonb(headers)],
            ).fetchone()
            assert row is not None
            sizes.append(row[0])
    assert sizes[0] == sizes[1]
