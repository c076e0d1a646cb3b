"""Search schedules of the publisher's core: see `--help`."""

from __future__ import annotations

import gc
import sys

from tests.support import searching
from tests.support.core_search.schedules import EXACTLY_ONCE, THEMES, repeat, run
from tests.support.core_search.variants import VARIANTS, catching, faults_of


def main() -> int:
    """Run random schedules, and print each violation with what repeats it."""
    options = searching.parser("tests.support.core_search", main.__doc__)
    options.add_argument("--theme", default="", choices=["", *THEMES, *EXACTLY_ONCE])
    args = options.parse_args()
    if args.variants is not None:
        return searching.search_variants(
            args, VARIANTS, catching, faults_of, lambda one: f"{one.rule:10} {one.name}: {one.theme}"
        )
    gc.freeze()
    gc.set_threshold(50_000)  # the worlds are many small objects, and each one ends soon
    return searching.search(
        args,
        lambda number: run(args.seed, number, theme=args.theme),
        lambda number: repeat(args.seed, number, args.theme),
    )


if __name__ == "__main__":
    sys.exit(main())
