"""docs/operations/deploy.md: its unit parses, its values fit the chart, and each command takes its options."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support.chart import rendered, values
from tests.support.outbox_command import outbox

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "deploy.md"
GRACE_S = 30
"""The default of --shutdown-timeout: what stops a relay has to wait for longer."""


def listing(language: str) -> str:
    (found,) = re.findall(
        rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return str(found)


def test_the_values_of_the_page_fit_the_chart_and_the_commands(
    tmp_path: Path,
) -> None:
    changes = yaml.safe_load(listing("yaml"))
    known = values()
    assert changes.keys() <= known.keys()
    for name, value in changes.items():
        assert not isinstance(value, dict) or value.keys() <= known[name].keys()
    objects = rendered(changes)
    commands = [
        each["spec"]["template"]["spec"]["containers"][0]["args"]
        for each in objects
        if "template" in each.get("spec", {})
    ]
    assert len(commands) == 3
    for args in commands:
        ran = outbox("config", "show", *args[:2], "--json")
        assert ran.code == 0, ran.err
        taken = {row["option"] for row in json.loads(ran.out)}
        assert {arg for arg in args if arg.startswith("--")} <= taken
    (config,) = (each["data"]["outbox.toml"] for each in objects if each["kind"] == "ConfigMap")
    file = tmp_path / "outbox.toml"
    file.write_text(config, encoding="utf-8")
    ran = outbox("config", "check", OUTBOX_CONFIG=str(file))
    assert ran.code == 0, ran.err


def test_the_secrets_of_the_page_are_those_that_the_chart_reads() -> None:
    made = re.findall(r"create secret generic (\S+)", PAGE.read_text(encoding="utf-8"))
    assert sorted(made) == sorted(values()[part]["secret"] for part in ("migrations", "relay", "checker"))


def test_the_file_of_options_fits_the_commands(tmp_path: Path) -> None:
    text = listing("toml")
    assert tomllib.loads(text)["relay"]["run"] == {"http": "9464", "livez": "9474"}
    file = tmp_path / "outbox.toml"
    file.write_text(text, encoding="utf-8")
    ran = outbox("config", "check", OUTBOX_CONFIG=str(file))
    assert ran.code == 0, ran.err


def test_the_unit_parses_and_waits_for_longer_than_the_relay_settles() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(listing("ini"))
    service = unit["Service"]
    assert service["ExecStart"].split()[1:] == ["relay", "run"]
    assert int(service["TimeoutStopSec"]) > GRACE_S
    assert service["KillSignal"] == "SIGTERM"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "outbox-relay.service"
    file.write_text(listing("ini").replace("/opt/outbox/bin/outbox", "/bin/true"), encoding="utf-8")
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )
    assert "outbox-relay" not in ran.stderr, ran.stderr
