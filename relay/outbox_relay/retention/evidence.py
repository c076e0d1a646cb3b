"""Whether a warehouse still holds what its newest certificate states, found out in the command that drops history."""

from __future__ import annotations

import json
from functools import cache

from outbox_etl.warehouse.witness import Witness
from outbox_relay.warehouse.vouching import vouched


class EvidenceCheck:
    """Checks evidence for one run of retention.

    A warehouse in a path is read at each question. Another one is read by the job, once: its Java takes seconds.
    """

    def __init__(self) -> None:
        self._witness = Witness()
        self._elsewhere = cache(vouched)

    def doubt(self, target: str, certificate: str, lower: int, upper: int) -> str:
        """Return why the history of these ids may not be in the warehouse any more; empty: it is.

        Args:
            target: the warehouse.
            certificate: the content of its newest certificate, as JSON.
            lower: the first id.
            upper: behind the last id.
        """
        try:
            evidence = dict(json.loads(certificate)["evidence"])
        except (ValueError, KeyError, TypeError):
            return "its newest certificate names no evidence, as those of older releases"
        if not evidence.get("of_a_path"):
            return self._elsewhere(target, json.dumps(evidence, sort_keys=True))
        found = self._witness.doubt(evidence, (lower, upper))
        return found.text if found else ""
