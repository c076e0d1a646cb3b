"""docs/operations/deploy.md: its units and manifests parse, and each command takes the options that it is given."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.outbox_command import outbox

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "deploy.md"
GRACE_S = 30
"""The default of --shutdown-timeout: what stops a relay has to wait for longer."""


def listing(language: str) -> str:
    (found,) = re.findall(
        rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return str(found)


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(listing("yaml")))


def pods() -> Iterator[dict[str, Any]]:
    yield from (each["spec"]["template"]["spec"] for each in manifests() if "template" in each["spec"])


def shown(*command: str) -> dict[str, str]:
    """Return the options that a command takes."""
    ran = outbox("config", "show", *command, "--json")
    assert ran.code == 0, ran.err
    return {row["option"]: row["value"] for row in json.loads(ran.out)}


def test_every_command_of_the_manifests_exists_and_takes_its_options() -> None:
    given = [container["args"] for pod in pods() for container in pod["containers"]]
    assert [args[:2] for args in given] == [["db", "upgrade"], ["relay", "run"], ["checker", "run"]]
    for args in given:
        assert {arg for arg in args if arg.startswith("--")} <= shown(*args[:2]).keys()


def test_probes_ask_the_port_that_the_command_serves() -> None:
    for pod in pods():
        for container in pod["containers"]:
            if "ports" not in container:
                continue
            (port,) = container["ports"]
            assert f"0.0.0.0:{port['containerPort']}" in container["args"]
            for probe in ("livenessProbe", "readinessProbe"):
                assert container[probe]["httpGet"]["port"] == port["name"]
            assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
            assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_pods_have_time_to_settle_and_no_rights_that_they_do_not_need() -> None:
    for pod in pods():
        for container in pod["containers"]:
            if container["args"][1] == "run":
                assert pod["terminationGracePeriodSeconds"] > GRACE_S
                assert pod["automountServiceAccountToken"] is False
                assert container["securityContext"]["runAsNonRoot"] is True
                assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_selectors_match_the_labels_of_their_pods() -> None:
    labels = [
        each["spec"]["template"]["metadata"]["labels"] for each in manifests() if each["kind"] == "Deployment"
    ]
    for each in manifests():
        if "selector" in each["spec"]:
            assert each["spec"]["selector"]["matchLabels"] in labels


def test_the_file_of_options_fits_the_commands(tmp_path: Path) -> None:
    text = listing("toml")
    assert tomllib.loads(text)["relay"]["run"] == {"http": "9464"}
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
