"""Statistics of repeated measurements: medians, percentiles, paired ratios."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

__all__ = ["median", "percentile", "ratio", "spread"]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of the sorted values do not exceed (nearest rank)."""
    if not ordered:
        raise ValueError("no values to take a percentile of")
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]


def ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios of each round: what drifts between rounds falls out."""
    return median(value / other for value, other in zip(values, others, strict=True))


def spread(values: Sequence[float]) -> str:
    """Least and greatest value, for people to judge the noise by."""
    return f"{min(values):,.0f} to {max(values):,.0f}"
