"""Holds a warehouse in a path against the evidence of a certificate, without Spark and without its catalog."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from outbox_etl.errors import TargetError
from outbox_etl.warehouse import iceberg_state, parquet_state
from outbox_etl.warehouse.evidence import Doubt, Evidence, LocalPlace, Span, State

OPENED: Mapping[str, Callable[[Evidence, LocalPlace], State]] = {
    iceberg_state.FORMAT: iceberg_state.in_a_path,
    parquet_state.FORMAT: parquet_state.in_a_path,
}


class Witness:
    """Checks warehouses as often as it is asked, and reads no file twice for its checksums."""

    def __init__(self) -> None:
        self._place = LocalPlace()

    def doubt(self, evidence: Evidence, span: Span) -> Doubt | None:
        """Find out whether what was verified is still there, with the files that may hold these ids or positions."""
        try:
            state = OPENED[evidence["format"]](evidence, self._place)
            return state.doubt(evidence) or state.doubt_files(span)
        except (OSError, TargetError) as error:
            return Doubt(str(error))
        except (KeyError, TypeError, ValueError) as error:
            return Doubt(f"it cannot be read: {type(error).__name__}: {error}")
