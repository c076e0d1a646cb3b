"""What `outbox etl` refuses before the job runs."""

from __future__ import annotations

from outbox_relay.text.errors import OperatorError


class EtlError(OperatorError):
    """The job cannot be started; the text states what is missing and how to get it."""
