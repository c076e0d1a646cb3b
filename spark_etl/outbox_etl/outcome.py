"""What a run of the export did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What a run did. Rows are rows written, seconds are wall clock."""

    target: str
    window_lo: int
    window_hi: int
    events: int = 0
    publications: int = 0
    messages: int = 0
    seconds: float = 0.0

    def followed_by(self, other: ExportResult) -> ExportResult:
        """Both windows as one."""
        names = ("events", "publications", "messages", "seconds")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return replace(self, window_hi=other.window_hi, **sums)

    def as_dict(self) -> dict[str, object]:
        """For machines."""
        return asdict(self)
