"""How messages are delivered to Kafka."""

from __future__ import annotations

from enum import StrEnum


class Guarantee(StrEnum):
    """What a relay promises about each message."""

    AT_LEAST_ONCE = "at-least-once"
    """It is published, and again where it is not known whether Kafka has it."""
    EXACTLY_ONCE = "exactly-once"
    """Kafka's transactions hold the messages: who reads committed messages gets each once."""
