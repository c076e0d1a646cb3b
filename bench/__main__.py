"""`python -m bench`: runs the benchmarks, shows them as they finish, and writes them as Markdown and JSON."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import click

from bench.harness.machine import describe
from bench.harness.report import Report, Section
from bench.harness.servers import Say, running_servers
from bench.plan import QUICK, Bench, Plan

BENCHMARKS = {
    "drain": "bench.drain",
    "relays": "bench.relays",
    "consume": "bench.consume",
    "latency": "bench.latency",
    "outboxes": "bench.outboxes.compare",
    "idle": "bench.idle",
    "send": "bench.send",
    "python": "bench.python",
    "held": "bench.held",
    "poison": "bench.poison",
    "marking": "bench.marking",
    "half": "bench.half",
    "peer": "bench.peer",
    "groups": "bench.groups",
    "fairness": "bench.fairness",
    "lookups": "bench.lookups",
    "console": "bench.console",
    "export": "bench.export",
}
KEPT = {"OUTBOX_CACHE", "OUTBOX_MAVEN_REPOSITORY"}
"""Environment twins that say where programs come from; the others would change what is measured."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only",
    type=click.Choice(list(BENCHMARKS)),
    multiple=True,
    help="Run this benchmark; repeatable. Default: all, in about an hour.",
)
@click.option(
    "--quick", is_flag=True, help="Small and short, to see that everything runs; figures mean nothing."
)
@click.option(
    "--scale",
    is_flag=True,
    help="Besides, drain 1,000,000 messages, search 10 million, and export 3 and 10 million.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for results.md and results.json; with --only, the other sections there stay. "
    "Default: bench/ for a full run, none otherwise.",
)
@click.option("--check", is_flag=True, help="Exit with 1 when a floor is missed.")
def main(*, only: tuple[str, ...], quick: bool, scale: bool, output: Path | None, check: bool) -> None:
    """Measure what the README states, on servers of its own below a temporary directory.

    \b
    Examples:
      python -m bench
      python -m bench --only drain --scale
      python -m bench --quick --output /tmp/bench
    """
    for name in [name for name in os.environ if name.startswith("OUTBOX_") and name not in KEPT]:
        del os.environ[name]
    # As after Ctrl-C, servers and data go: a large history shall not stay behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if output is None and not only and not quick:
        output = Path(__file__).parent
    say = _clock()
    sections: list[Section] = []
    failed: list[str] = []
    with running_servers(say) as servers:
        report = Report(describe(servers), sections)
        for name, value in report.machine.items():
            say(f"{name}: {value}")
        for name, module in BENCHMARKS.items():
            if only and name not in only:
                continue
            began = time.monotonic()
            say(f"== {name}")
            bench = Bench(servers, QUICK if quick else Plan(), scale, say)
            try:
                section: Section = importlib.import_module(module).run(bench)
            except Exception as error:  # noqa: BLE001  (the figures of the others shall not be lost with it)
                traceback.print_exc()
                failed.append(name)
                say(f"{name} failed: {type(error).__name__}")
                continue
            section.seconds = round(time.monotonic() - began, 1)
            sections.append(section)
            click.echo(f"\n{section.markdown()}\n")
    click.echo(report.summary())
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        if (only or failed) and (output / "results.json").exists():
            report = report.into((output / "results.json").read_text(), list(BENCHMARKS))
        (output / "results.md").write_text(report.markdown())
        (output / "results.json").write_text(report.json())
        say(f"written: {output / 'results.md'} and results.json")
    if failed:
        raise click.ClickException(f"no figures of {', '.join(failed)}; see the errors above")
    if check and not all(floor.met for floor in report.floors):
        raise SystemExit(1)


def _clock() -> Say:
    began = time.monotonic()

    def say(line: str) -> None:
        click.echo(f"[{time.monotonic() - began:6.1f} s] {line}", err=True)

    return say


if __name__ == "__main__":
    main()
