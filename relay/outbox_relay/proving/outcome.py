"""What a run reports at its end, for people and for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outbox_relay.proving.course import Course, LatencySummary
from outbox_relay.proving.faults import Fault
from outbox_relay.proving.history import PROMISES, Fate, HistoryFindings, Offence

NAMED = 5
"""How many messages of an offence are named."""


@dataclass(frozen=True, slots=True)
class ProofOutcome:
    """The result of `outbox prove`."""

    seed: int
    delivery: str
    servers: str
    fates: Counter[Fate]
    read: int
    applied: int
    findings: HistoryFindings
    faults: Sequence[Fault]
    unexpected: Sequence[str]
    """Processes that ended and no fault explains it; they were started again."""
    course: Course | None
    latency: LatencySummary | None
    seconds: float
    journals: Path | None = None
    """Where journals and logs are; None when they were removed."""

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return self.findings.kept

    @property
    def counted_faults(self) -> dict[str, int]:
        """How many of each kind took effect."""
        return {str(kind): number for kind, number in Counter(one.kind for one in self.faults).items()}

    def as_json(self) -> dict[str, Any]:
        """Return the same facts for machines."""
        found = self.findings
        return {
            "kept": self.kept,
            "seed": self.seed,
            "delivery": self.delivery,
            "messages": {str(fate).replace(" ", "_"): self.fates[fate] for fate in Fate},
            "read": self.read,
            "applied": self.applied,
            "allowed_repeats": found.repeats,
            "checks": {
                str(offence): {
                    "promise": text,
                    "checked": found.checked[offence],
                    "broken": len(found.found[offence]),
                    "first": [{"message_id": name, "why": why} for name, why in self.first(offence)],
                }
                for offence, text in PROMISES.items()
            },
            "faults": self.counted_faults,
            "fault_list": [{"at": one.at, "until": one.until, "text": one.text} for one in self.faults],
            "unexpected_ends": list(self.unexpected),
            "latency_ms": None if self.latency is None else asdict(self.latency),
            "seconds": round(self.seconds, 1),
            "journals": str(self.journals) if self.journals else None,
        }

    def first(self, offence: Offence) -> list[tuple[str, str]]:
        """Return the first messages that offend in this way, and why."""
        return list(self.findings.found[offence].items())[:NAMED]

    def lines(self) -> list[tuple[str, str]]:
        """Return lines to print, each with a colour."""
        fates = ", ".join(f"{self.fates[fate]:,} {fate}" for fate in Fate if self.fates[fate])
        faults = ", ".join(f"{number} {kind}" for kind, number in self.counted_faults.items()) or "none"
        lines = [
            (f"messages  {fates}", ""),
            (f"arrived   {self.read:,} records; {self.applied:,} applied by the inbox", ""),
            (f"repeated  {self.findings.repeats:,} records after a fault, as {self.delivery} allows", ""),
            (f"faults    {faults}", ""),
        ]
        if self.latency is not None:
            one = self.latency
            text = f"p50 {one.p50:,.1f} ms, p99 {one.p99:,.0f} ms, at most {one.highest:,.0f} ms, faults included"
            lines.append((f"latency   {text}", ""))
        lines += [(f"ended     {text}; started again", "yellow") for text in self.unexpected]
        for offence, text in PROMISES.items():
            lines += self._check_lines(offence, text)
        if self.kept:
            lines.append((f"KEPT: every promise, in {self.seconds:.0f} s with seed {self.seed}", "green"))
        else:
            broken = sum(map(len, self.findings.found.values()))
            lines.append(
                (f"BROKEN: {broken:,} messages; seed {self.seed}, journals in {self.journals}", "red")
            )
        return lines

    def _check_lines(self, offence: Offence, text: str) -> list[tuple[str, str]]:
        found, checked = self.findings.found[offence], self.findings.checked[offence]
        if not found:
            return [(f"  ✓ {text} ({checked:,})", "green")]
        lines = [(f"  ✗ {offence}: {len(found):,} of {checked:,}: {text}", "red")]
        lines += [(f"      {name}  {why}", "red") for name, why in self.first(offence)]
        if len(found) > NAMED:
            lines.append((f"      … and {len(found) - NAMED:,} more", "red"))
        return lines
