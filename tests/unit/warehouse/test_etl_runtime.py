"""The Java that is fetched for the warehouse's job: it starts although it lacks a module that Spark asks for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from outbox_relay.downloads import wheels
from outbox_relay.warehouse import runtime


def test_the_launcher_leaves_out_the_module_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "it's fetched" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    java.chmod(0o755)
    monkeypatch.setenv("OUTBOX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(wheels, "java_from_wheel", lambda: java)
    home = runtime.fetched_home()
    assert runtime.fetched_home() == home
    given = ["-cp", "a b", runtime.MODULE, "--add-modules=java.sql", "", "x'y"]
    done = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert done.stdout == "<-cp><a b><--add-modules=java.sql><><x'y>"
