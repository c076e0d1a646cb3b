"""The result of a demo: what was played, what was proven and the figures, for people and for machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outbox_local.demo.chart import chart
from outbox_local.demo.claims import Claim, ProofResult
from outbox_local.demo.figures import Figures, Latency


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What a demo reports at its end."""

    flights: int
    producers: int
    seed: int
    sabotage: str | None
    proof: ProofResult
    figures: Figures | None
    """None when nothing was read."""
    seconds: float
    """All in all, with the servers' start."""
    journals: Path | None
    """Where the journals are; None when they were removed."""
    history: ProofResult | None = None
    """What was proven of the warehouse; None when none was made."""
    warehouse: Path | None = None

    @property
    def holds(self) -> bool:
        """Whether all that was to be proven holds."""
        return self.proof.holds and (self.history is None or self.history.holds)

    def as_json(self) -> dict[str, Any]:
        """The same facts for machines."""
        proof = self.proof
        return {
            "proven": self.holds,
            "flights": self.flights,
            "producers": self.producers,
            "seed": self.seed,
            "sabotage": self.sabotage,
            "counts": {
                "committed": proof.committed,
                "rolled_back": proof.rolled_back,
                "unknown": proof.unknown,
                "aircraft": proof.aircraft,
                "read": proof.read,
                "repeated_after_the_kill": proof.repeated,
            },
            "claims": _claims(proof),
            "warehouse": None
            if self.history is None
            else {"directory": str(self.warehouse), "claims": _claims(self.history)},
            "figures": asdict(self.figures) if self.figures else None,
            "seconds": round(self.seconds, 1),
            "journals": str(self.journals) if self.journals else None,
        }

    def lines(self) -> list[tuple[str, str]]:
        """Lines to print, each with a style of rich."""
        lines = [("", "")]
        if self.figures is not None:
            lines += [(line, "") for line in [*chart(self.figures.course), "", *_figures(self.figures), ""]]
        proof = self.proof
        lines.append(
            (
                f"{self.flights:,} flights: {proof.committed:,} committed, {proof.rolled_back:,} rolled back"
                + (f", {proof.unknown:,} unknown" if proof.unknown else "")
                + f"; {proof.read:,} records read, {proof.repeated:,} of them again after the kill",
                "",
            )
        )
        if self.sabotage is not None:
            lines.append((f"sabotaged: the transport was made to {self.sabotage} one message", "yellow"))
        claims = list(proof.claims.values())
        for claim in claims:
            lines += claim_lines(claim)
        if self.history is not None:
            lines += [("", ""), (f"the warehouse in {self.warehouse}:", "")]
            for claim in self.history.claims.values():
                lines += claim_lines(claim)
            claims += self.history.claims.values()
        lines.append(("", ""))
        if self.holds:
            lines.append((f"PROVEN in {self.seconds:.0f} s", "bold green"))
        else:
            broken = sum(claim.broken for claim in claims)
            lines.append((f"NOT PROVEN: {broken:,} offences", "bold red"))
        return lines


def _claims(proof: ProofResult) -> dict[str, Any]:
    return {name: {**asdict(claim), "holds": claim.holds} for name, claim in proof.claims.items()}


def claim_lines(claim: Claim) -> list[tuple[str, str]]:
    """Lines that show a claim and where it does not hold, each with a style of rich."""
    if claim.holds:
        return [(f"  ✓ {claim.text} ({claim.checked:,})", "green")]
    lines = [(f"  ✗ {claim.text}: broken {claim.broken:,} times of {claim.checked:,}", "red")]
    lines += [(f"      {offender}", "red") for offender in claim.offenders]
    if claim.broken > len(claim.offenders):
        lines.append((f"      … and {claim.broken - len(claim.offenders):,} more", "red"))
    return lines


def _figures(figures: Figures) -> list[str]:
    recovery = "no relay after the kill" if figures.recovery_s is None else f"{figures.recovery_s:.2f} s"
    transactions = f"{figures.transactions_per_s:,.0f}/s, {figures.committed_per_s:,.0f}/s of them committed"
    return [
        f"transactions  {transactions}; {figures.contended:,} contended for an aircraft",
        f"published     {figures.published_per_s:,.0f}/s",
        f"consumed      {figures.read_per_s:,.0f}/s, at best {figures.read_per_s_at_best:,.0f}/s",
        f"latency       {latency_text(figures.steady)} (COMMIT sent → consumer has it)",
        f"recovery      {recovery} from the kill to the next message; {figures.held_up:,} messages waited",
    ]


def latency_text(latency: Latency | None) -> str:
    """The percentiles in one line."""
    if latency is None:
        return "none outside of the kill"
    return f"p50 {latency.p50:.1f} ms, p95 {latency.p95:.1f} ms, p99 {latency.p99:.1f} ms"
