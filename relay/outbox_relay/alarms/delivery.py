"""Delivers alarms: a signed POST to one URL, within a deadline, tried again until the receiver takes it.

Each alarm is sent once when it is raised and once when it is over, in this order. A process claims a row for `LEASE_S`,
sends, and records that it was sent. Schedules:

- It dies, or is paused, before it sends: the claim passes, and any process sends it.
- It dies between the reply and the record, or the reply is lost: it is sent again, with the same id and event. The
  receiver sees from these two that it has it.
- It wakes up after its claim has passed: its record finds another claim, and changes nothing.
- The receiver is away: pauses grow to 5 min; nothing is given up.
"""

from __future__ import annotations

import json
import secrets as random
import ssl
import time
from http.client import HTTPException
from typing import Any, NamedTuple

import psycopg

from outbox.backoff import pause_after
from outbox.callbacks.signing import Secrets
from outbox.statements import Statements
from outbox_relay.calls.address import HttpCallback
from outbox_relay.calls.allow_list import AllowList, RefusedAddressError
from outbox_relay.calls.channel import ReplyError, Resolved, open_channel, signed_headers
from outbox_relay.calls.deadline import Bounded
from outbox_relay.text.logs import Log

STATEMENTS = Statements("outbox_relay/alarms/alarms.sql")

DEADLINE_S = 10.0
LEASE_S = 30.0
FIRST_PAUSE_S = 1.0
LAST_PAUSE_S = 300.0
LARGEST_REPLY = 16 * 1024

log = Log("alarms")


class Webhook(NamedTuple):
    """Where alarms go, and by which secret they are signed."""

    receiver: HttpCallback
    secrets: Secrets
    allowed: AllowList
    tls: ssl.SSLContext


class Delivery:
    """Sends what is due, over one connection to PostgreSQL at a time.

    Args:
        webhook: where alarms go.
        patience: seconds for one request; below `LEASE_S`.
    """

    def __init__(self, webhook: Webhook, patience: float = DEADLINE_S) -> None:
        self._webhook, self._patience = webhook, patience
        self._lookup: Bounded[Resolved] = Bounded(2)

    def send_due(self, conn: psycopg.Connection[Any]) -> None:
        """Send all alarms that are due now; a failure is recorded and logged."""
        while True:
            claim = random.token_hex(8)
            row = conn.execute(STATEMENTS["claim"], {"claim": claim, "lease": LEASE_S}).fetchone()
            if row is None:
                return
            kind, cause, id_, detail, raised_at, cleared_at, tries = row
            mine = {"kind": kind, "cause": cause, "claim": claim}
            body = {
                "id": id_,
                "event": "raised" if cleared_at is None else "cleared",
                "kind": kind,
                "cause": cause,
                "detail": detail,
                "raised_at": raised_at.isoformat(),
                "cleared_at": None if cleared_at is None else cleared_at.isoformat(),
                "database": conn.info.dbname,
            }
            problem = self._post(json.dumps(body, ensure_ascii=False).encode())
            if problem is None:
                conn.execute(STATEMENTS["raise_sent" if cleared_at is None else "clear_sent"], mine)
                log.info("alarm sent", kind=kind, cause=cause, about=body["event"])
            else:
                pause = pause_after(tries, FIRST_PAUSE_S, LAST_PAUSE_S)
                conn.execute(STATEMENTS["failed"], {**mine, "pause": pause})
                log.warning("alarm not sent", kind=kind, cause=cause, error=problem, next_try_in_s=pause)

    def _post(self, body: bytes) -> str | None:
        """Send one request; return why it failed, or None."""
        receiver, secrets, allowed, tls = self._webhook
        deadline = time.monotonic() + self._patience
        headers = signed_headers(receiver, secrets, body, "application/json")
        try:
            channel = open_channel(receiver, allowed, self._lookup, tls, deadline)
            try:
                reply = channel.exchange(receiver, headers, body, deadline, LARGEST_REPLY)
            finally:
                channel.close()
        except (RefusedAddressError, ReplyError) as error:
            return str(error)
        except (OSError, HTTPException, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return None if 200 <= reply.status < 300 else f"status {reply.status}"
