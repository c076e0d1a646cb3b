"""What the guide to the warehouse tells readers to type, taken from its text."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "warehouse.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """The examples in one language, from top to bottom."""
    found = [text for kind, text in BLOCK.findall(GUIDE.read_text(encoding="utf-8")) if kind == language]
    assert found, f"no example in {language}"
    return found
