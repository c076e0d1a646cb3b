"""Search schedules of the consumer's core: see `--help`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.support.inbox_search.schedules import repeat, run
from tests.support.inbox_search.variants import SEED, VARIANTS, catching, faults_of


def main() -> int:
    """Run random schedules, and print each violation with what repeats it."""
    options = argparse.ArgumentParser(prog="python -m tests.support.inbox_search", description=main.__doc__)
    options.add_argument("--seed", default="1")
    options.add_argument("--schedules", type=int, default=1000)
    options.add_argument("--first", type=int, default=1, help="number of the first schedule")
    options.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    options.add_argument(
        "--trace", action="store_true", help="print the actions of the first violation, and stop"
    )
    options.add_argument(
        "--variants", metavar="TEXT", help="find what catches each variant with TEXT in its name"
    )
    args = options.parse_args()
    if args.variants is not None:
        for variant in VARIANTS:
            if args.variants in variant.name:
                number = catching(variant, args.schedules)
                faults = sorted(faults_of(variant, number)) if number else "MISSED"
                sys.stdout.write(f"{variant.name}: {SEED} {number} {faults}\n")
                sys.stdout.flush()
        return 0
    counts: Counter[str] = Counter()
    began, number = time.monotonic(), args.first
    for number in range(args.first, args.first + args.schedules):
        outcome = run(args.seed, number)
        counts.update(outcome.faults)
        if outcome.faults:
            sys.stdout.write(f"{repeat(args.seed, number)}: {sorted(outcome.faults)}\n")
            if args.trace:
                sys.stdout.writelines(f"    {action}\n" for action in outcome.trace)
                break
        if time.monotonic() - began > args.seconds:
            break
    took = time.monotonic() - began
    done = number - args.first + 1
    sys.stdout.write(f"seed {args.seed}: {done} schedules, {took:.0f} s, {dict(counts) or 'no violation'}\n")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
