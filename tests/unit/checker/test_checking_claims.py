"""Claims are told apart, whoever makes them."""

from __future__ import annotations

import subprocess
import sys

from outbox.checking.claiming import claim
from outbox.checking.group_settings import GroupSettings

TOKEN = """
from outbox.checking.claiming import claim
from outbox.checking.group_settings import GroupSettings
print(next(claim(GroupSettings("g"), "checker:g@app:1", 1)).params[3])
"""


def test_processes_of_the_same_name_make_different_claims() -> None:
    command = [sys.executable, "-c", TOKEN]
    one, other = (subprocess.check_output(command, text=True) for _ in range(2))
    assert one.startswith("checker:g@app:1#")
    assert one != other


def test_claims_of_one_process_differ() -> None:
    tokens = {next(claim(GroupSettings("g"), "me", 1)).params[3] for _ in range(100)}
    assert len(tokens) == 100
