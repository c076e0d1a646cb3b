"""The result of the proof: its claims, and where they do not hold."""

from __future__ import annotations

from dataclasses import dataclass, field

OFFENDERS_NAMED = 10


@dataclass(slots=True)
class Claim:
    """One sentence of the proof, how often it was checked, and where it does not hold."""

    text: str
    checked: int = 0
    broken: int = 0
    offenders: list[str] = field(default_factory=list)
    """The first ten, each naming its flight."""

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.broken

    def offend(self, text: str) -> None:
        """Note a place where the claim does not hold."""
        self.broken += 1
        if len(self.offenders) < OFFENDERS_NAMED:
            self.offenders.append(text)


@dataclass(slots=True)
class ProofResult:
    """The claims, and the counts behind them."""

    claims: dict[str, Claim]
    committed: int
    rolled_back: int
    unknown: int
    """Flights whose COMMIT was never answered: they may have arrived or not."""
    aircraft: int
    read: int
    repeated: int
    """Records that a crash explains: read before, same message id."""

    @property
    def holds(self) -> bool:
        """Whether every claim holds."""
        return all(claim.holds for claim in self.claims.values())


def new_claims() -> dict[str, Claim]:
    """The claims, none of them checked yet."""
    return {
        "accounted": Claim("every flight of the source has one outcome in the producers' journals"),
        "arrived": Claim("every committed flight arrived"),
        "content": Claim("each with its source row, aircraft, sequence and tags"),
        "order": Claim("in order per aircraft: 1, 2, 3 … without a gap, as the producers journalled"),
        "partition": Claim("one partition per aircraft"),
        "rolled back": Claim("no rolled-back flight arrived"),
        "nothing else": Claim("nothing else arrived"),
        "once": Claim("nothing twice, but what a kill explains, under the same message id"),
    }
