"""The publisher may only become smaller: what one person reads before a change."""

from __future__ import annotations

from pathlib import Path

PUBLISHER = Path(__file__).resolve().parent.parent.parent / "relay" / "outbox_relay" / "publisher"
CODE = {".py", ".sql"}
MOST_FILES, MOST_LINES = 57, 11_200
"""They fall: to 30 files and 7,000 lines."""


def test_the_publisher_grows_no_more() -> None:
    files = [path for path in PUBLISHER.rglob("*") if path.suffix in CODE]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    assert len(files) <= MOST_FILES, "which of its files belong together?"
    assert lines <= MOST_LINES, "what is there twice, or serves what is gone?"
