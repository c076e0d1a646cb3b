"""The options of `outbox relay run` that push alarms are refused before anything starts, with what repairs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.outbox_command import outbox

HOOK = ("--alarm-webhook", "https://alerts.example.com/outbox")
SECRET = {"OUTBOX_ALARM_SECRET": "0123456789abcdef-of-a-test"}


@pytest.mark.parametrize(
    ("options", "environment", "reason"),
    [
        (HOOK, {}, "needs OUTBOX_ALARM_SECRET or --alarm-secret-file"),
        (HOOK, {"OUTBOX_ALARM_SECRET": "short"}, "needs OUTBOX_ALARM_SECRET or --alarm-secret-file"),
        (("--alarm-webhook", "ftp://alerts.example.com/"), SECRET, "scheme 'ftp'"),
        (("--alarm-webhook", "https://user@alerts.example.com/"), SECRET, "--alarm-webhook: "),
        ((*HOOK, "--alarm-allow-network", "example.com"), SECRET, "--alarm-allow-network: "),
        ((*HOOK, "--alarm-backlog-age", "soon"), SECRET, "--alarm-backlog-age"),
        ((*HOOK, "--alarm-every", "often"), SECRET, "--alarm-every"),
        (("--alarm-backlog-age", "5min"), {}, "--alarm-backlog-age needs --alarm-webhook"),
    ],
)
def test_alarm_options_that_cannot_be_used_are_refused(
    options: tuple[str, ...], environment: dict[str, str], reason: str
) -> None:
    ran = outbox(
        *("relay", "run", *options),
        OUTBOX_DSN="postgresql://nobody@127.0.0.1:1/none",
        OUTBOX_BOOTSTRAP_SERVERS="127.0.0.1:1",
        **environment,
    )
    assert ran.code == 2, ran.err
    assert reason in ran.err


def test_a_secret_file_without_a_secret_is_refused_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("tooshort", encoding="utf-8")
    ran = outbox(
        *("relay", "run", *HOOK, "--alarm-secret-file", str(file)),
        OUTBOX_DSN="postgresql://nobody@127.0.0.1:1/none",
        OUTBOX_BOOTSTRAP_SERVERS="127.0.0.1:1",
    )
    assert ran.code == 2
    assert "OUTBOX_ALARM_SECRET" in ran.err
    assert "tooshort" not in ran.err
