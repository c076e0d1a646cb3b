"""The examples of the pages about personal data and large bodies, and the codec of the reference, run as they stand."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from outbox import Message
from outbox.drivers import psycopg_sync
from tests.support.encrypted_bodies import ROW, KeyTable, records
from tests.support.inbox_stage import InboxStage, apply

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str, language: str) -> list[str]:
    """The examples of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_page_about_personal_data(inbox: InboxStage) -> None:
    (make_key,) = [block for block in blocks("how-to/personal-data.md", "sh") if "openssl" in block]
    subprocess.run(["sh", "-c", make_key], check=True)
    encrypt, consume, by_service = blocks("how-to/personal-data.md", "python")
    inbox.conn.execute("CREATE TABLE customer (id bigint, street text); INSERT INTO customer VALUES (4711)")
    with psycopg.connect(inbox.dsn) as conn:
        names: dict[str, Any] = {
            "conn": conn,
            "dsn": inbox.dsn,
            "kafka": {"bootstrap.servers": inbox.bootstrap_servers},
            "listener": apply,
            "ARN": "arn:1",
            "kms": SimpleNamespace(),
        }
        for block in (encrypt, consume, by_service):
            exec(compile(block, "personal-data.md", "exec"), names)
        assert names["consumer"].member.group == "mails"
        (record,) = records(inbox.conn.execute(ROW).fetchall())
        decoded = psycopg_sync.run(conn, names["customers"].decode(record, record.body))
        assert decoded == b"12 St James's Square"
        (erase,) = blocks("how-to/personal-data.md", "sql")
        assert len(conn.execute(erase.encode()).fetchall()) == 1


def test_the_page_about_large_bodies(inbox: InboxStage) -> None:
    Path("bodies").mkdir()
    send, bucket = blocks("how-to/large-bodies.md", "python")
    with psycopg.connect(inbox.dsn) as conn:
        names: dict[str, Any] = {"conn": conn}
        for block in (send, bucket):
            exec(compile(block, "large-bodies.md", "exec"), names)
    assert inbox.count("outbox.message", "body = '' AND headers->>'claim-check-bytes' = '3000000'") == 1
    names["ClaimCheck"](names["Bucket"]())


def test_the_codec_of_the_reference() -> None:
    (block,) = [text for text in blocks("reference/library.md", "python") if "class Compressed" in text]
    names: dict[str, Any] = {}
    exec(compile(block, "library.md", "exec"), names)
    codec, table = names["Compressed"](), KeyTable()
    record = table.encoded(codec, Message("t", "k", "x" * 1000))
    assert len(record.body) < 100
    assert table.run(codec.decode(record, record.body)) == b"x" * 1000
    assert table.run(codec.decode(record.but(headers={}), b"plain")) == b"plain"
