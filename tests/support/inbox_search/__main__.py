"""Search schedules of the consumer's core: see `--help`."""

from __future__ import annotations

import sys
from functools import partial

from tests.support import searching
from tests.support.inbox_search.schedules import repeat, run
from tests.support.inbox_search.variants import SEED, VARIANTS, catching, faults_of


def main() -> int:
    """Run random schedules, and print each violation with what repeats it."""
    args = searching.parser("tests.support.inbox_search", main.__doc__).parse_args()
    if args.variants is not None:
        return searching.search_variants(
            args, VARIANTS, catching, faults_of, lambda variant: f"{variant.name}: {SEED}"
        )
    return searching.search(args, partial(run, args.seed), partial(repeat, args.seed))


if __name__ == "__main__":
    sys.exit(main())
