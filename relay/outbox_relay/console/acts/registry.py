"""All acts by the name in their path."""

from __future__ import annotations

from collections.abc import Mapping

from outbox_relay.console.acts.act import Act
from outbox_relay.console.acts.letters import LETTERS
from outbox_relay.console.acts.pauses import PAUSES
from outbox_relay.console.acts.single import SINGLE

ACTS: Mapping[str, Act] = {**LETTERS, **SINGLE, **PAUSES}
