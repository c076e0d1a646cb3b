"""What the searches of cores share: their command line, and cores whose sources are changed."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar


class Outcome(Protocol):
    """What came of a schedule."""

    faults: set[str]
    trace: list[tuple[Any, ...]]


class Named(Protocol):
    """A variant."""

    @property
    def name(self) -> str:
        """It names the safeguard that is missing."""
        ...


V = TypeVar("V", bound=Named)


class Edit(NamedTuple):
    """A text of a file of the core, and what replaces it."""

    file: str
    old: str
    new: str


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return the options of a search."""
    options = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    options.add_argument("--seed", default="1")
    options.add_argument("--schedules", type=int, default=1000)
    options.add_argument("--first", type=int, default=1, help="number of the first schedule")
    options.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    options.add_argument(
        "--trace", action="store_true", help="print the actions of the first violation, and stop"
    )
    options.add_argument(
        "--variants", metavar="TEXT", help="find the schedule that catches each variant with TEXT in its name"
    )
    return options


def search(args: argparse.Namespace, run: Callable[[int], Outcome], repeat: Callable[[int], str]) -> int:
    """Run random schedules, and print each violation with what repeats it; return the exit code."""
    counts: Counter[str] = Counter()
    began, number = time.monotonic(), args.first
    for number in range(args.first, args.first + args.schedules):
        outcome = run(number)
        counts.update(outcome.faults)
        if outcome.faults:
            sys.stdout.write(f"{repeat(number)}: {sorted(outcome.faults)}\n")
            if args.trace:
                sys.stdout.writelines(f"    {action}\n" for action in outcome.trace)
                break
        if time.monotonic() - began > args.seconds:
            break
    took = time.monotonic() - began
    done = number - args.first + 1
    sys.stdout.write(f"seed {args.seed}: {done} schedules, {took:.0f} s, {dict(counts) or 'no violation'}\n")
    return 1 if counts else 0


def search_variants(
    args: argparse.Namespace,
    variants: Iterable[V],
    catching: Callable[[V, int], int | None],
    faults_of: Callable[[V, int], Collection[str]],
    describe: Callable[[V], str],
) -> int:
    """Print the first schedule that catches each variant, and what the variant breaks; return the exit code."""
    missed = 0
    for variant in variants:
        if args.variants in variant.name:
            number = catching(variant, args.schedules)
            missed += number is None
            faults = sorted(faults_of(variant, number)) if number else "MISSED"
            sys.stdout.write(f"{describe(variant)} {number} {faults}\n")
            sys.stdout.flush()
    return 1 if missed else 0


def sources(product: ModuleType, files: Iterable[str]) -> dict[str, str]:
    """Return the text of each file of a core."""
    folder = Path(str(product.__file__)).parent
    return {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in files}


def changed(product: ModuleType, files: Sequence[str], edits: Sequence[Edit]) -> Mapping[str, ModuleType]:
    """Return the modules of a core whose sources are changed.

    Args:
        product: the package of the core.
        files: its modules, each after those that it imports.
        edits: what is changed.

    Raises:
        LookupError: A file does not have a text once.
    """
    package, texts = product.__name__, sources(product, files)
    for edit in edits:
        if texts[edit.file].count(edit.old) != 1:
            raise LookupError(f"{edit.file}.py has {texts[edit.file].count(edit.old)} times: {edit.old}")
        texts[edit.file] = texts[edit.file].replace(edit.old, edit.new)
    prefix = f"{package.replace('.', '_')}_without_{abs(hash(tuple(edits))):x}"
    found = {}
    for name, text in texts.items():
        module = found[name] = ModuleType(f"{prefix}.{name}")
        sys.modules[module.__name__] = module
        exec(compile(text.replace(f"{package}.", f"{prefix}."), module.__name__, "exec"), module.__dict__)
    return found
