"""Search schedules of the publisher's core: see `--help`."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter

from tests.support.core_search.schedules import EXACTLY_ONCE, THEMES, repeat, run
from tests.support.core_search.variants import VARIANTS, catching, faults_of


def main() -> int:
    """Run random schedules, and print each violation with what repeats it."""
    options = argparse.ArgumentParser(prog="python -m tests.support.core_search", description=main.__doc__)
    options.add_argument("--seed", default="1")
    options.add_argument("--schedules", type=int, default=1000)
    options.add_argument("--first", type=int, default=1, help="number of the first schedule")
    options.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    options.add_argument("--theme", default="", choices=["", *THEMES, *EXACTLY_ONCE])
    options.add_argument(
        "--trace", action="store_true", help="print the actions of the first violation, and stop"
    )
    options.add_argument(
        "--variants", metavar="TEXT", help="find the schedule that catches each variant with TEXT in its name"
    )
    args = options.parse_args()
    if args.variants is not None:
        return search_variants(args.variants, args.schedules)
    gc.freeze()
    gc.set_threshold(50_000)  # the worlds are many small objects, and each one ends soon
    counts: Counter[str] = Counter()
    began, number = time.monotonic(), args.first
    for number in range(args.first, args.first + args.schedules):
        outcome = run(args.seed, number, theme=args.theme)
        counts.update(outcome.faults)
        if outcome.faults:
            sys.stdout.write(f"{repeat(args.seed, number, args.theme)}: {sorted(outcome.faults)}\n")
            if args.trace:
                sys.stdout.writelines(f"    {action}\n" for action in outcome.trace)
                break
        if time.monotonic() - began > args.seconds:
            break
    took = time.monotonic() - began
    done = number - args.first + 1
    sys.stdout.write(f"seed {args.seed}: {done} schedules, {took:.0f} s, {dict(counts) or 'no violation'}\n")
    return 1 if counts else 0


def search_variants(text: str, most: int) -> int:
    """Print the first schedule that catches each variant, and what the variant breaks."""
    missed = 0
    for variant in VARIANTS:
        if text in variant.name:
            number = catching(variant, most)
            missed += number is None
            faults = sorted(faults_of(variant, number)) if number else "MISSED"
            sys.stdout.write(f"{variant.rule:10} {variant.name}: {variant.theme} {number} {faults}\n")
            sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
