"""An adapter whose library is not installed names the extra that brings it."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
sys.modules[{library!r}] = None
try:
    import outbox.adapters.{library}
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.mark.parametrize("library", ["asyncpg", "django", "sqlalchemy"])
def test_a_missing_library_is_reported_with_its_extra(library: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CODE.format(library=library)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.endswith(f"is not installed; run: pip install 'outbox-kafka[{library}]'\n")
