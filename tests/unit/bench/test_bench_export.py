"""The pieces of the export benchmark that need no server: its tables, the plan worked out from them, the command."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from bench.export_plan import copied, extrapolated, measured, tables
from bench.export_report import Outcome, describe
from bench.harness.command import run
from bench.harness.report import Floor, Report, Section
from bench.load.history import Counts
from bench.load.warehouse import Exported


def outcome(millions: int, seconds: float) -> Outcome:
    """An export at 100,000 messages/s when it takes ten seconds per million."""
    messages = millions * 1_000_000
    steps = {"window": 0.0, "events": 1.0, "publications": 3.0, "new": seconds - 1, "done": seconds}
    exported = Exported(
        seconds, seconds + 8, 100, messages, messages, 1_500_000_000, {**steps, "marts": seconds + 2}
    )
    exported.cpu = {
        "postgres": 2.0 * millions,
        "java": 3.0 * millions,
        "outbox": 1.0,
        "python3": 1.5 * millions - 1,
    }
    found = Outcome(Counts(messages, messages, 100), 500 * messages)
    found.exports = [exported, exported]
    found.singles = [{"seconds": 2 * seconds, "wall": 2 * seconds + 5, "cpu": {"java": 2.0 * seconds}}] * 2
    found.copies = [{"seconds": seconds / 2}] * 2
    found.files = {"message_history": (4, 150 * messages), "all": (30, 200 * messages)}
    found.windows = {"new": exported, "late": exported}
    return found


def usual() -> Outcome:
    """With the figures of single tasks."""
    found = outcome(1, 10.0)
    found.usual = True
    found.reconcile = 12.0
    times = dict.fromkeys(("read_one", "read_all", "prepare_all", "scan_all", "rewrite_all"), 5.0)
    found.parts = {"cores": 4, "messages": 1_000_000, "bytes": 150_000_000, **times}
    return found


def test_the_ratio_to_a_single_connection_is_a_floor_and_so_is_the_rate_at_scale() -> None:
    section = describe([usual(), outcome(10, 125.0)], 10_000)
    assert [(floor.measured, floor.met) for floor in section.floors[:3]] == [
        (2.0, True),
        (2.0, True),
        (0.8, True),
    ]
    assert not describe([usual(), outcome(10, 126.0)], 10_000).floors[2].met


def test_small_windows_on_the_longest_history_and_reconcile_have_floors() -> None:
    last = outcome(10, 14.0)
    last.late = 1_017
    floors = describe([usual(), last], 10_000).floors[3:]
    assert [(floor.what, floor.measured, floor.met) for floor in floors] == [
        ("window of 10,000 messages on 10,000,000", 22.0, False),
        ("1,017 late decisions on 10,000,000", 22.0, True),
        ("reconcile", 12.0, True),
    ]


def test_the_cpu_of_a_message_is_told_by_process() -> None:
    text = describe([usual()], 10_000).markdown()
    assert re.search(r"\| export, 1,000,000 +\| +2.00 \| +3.00 \| +1.50 \| +6.50 \| +0.36 \|", text)
    assert re.search(
        r"\| single connection, 1,000,000 +\| +0.00 \| +20.00 \| +0.00 \| +20.00 \| +0.80 \|", text
    )


def test_the_cpu_of_a_command_and_of_what_it_starts_is_counted_by_name() -> None:
    burn = "import time; until = time.process_time() + 0.5\nwhile time.process_time() < until: pass\ntime.sleep(0.3)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    ran = run([sys.executable, "-c", outer], limit=60)
    assert 0.45 <= sum(ran.cpu.values()) < 2.0


def test_a_step_that_the_job_did_not_tell_is_no_negative_time() -> None:
    found = usual()
    for exported in found.exports:
        exported.steps = {"window": 0.0, "done": 9.0}
    assert found.step("publications", "events") == 0.0
    assert "9.0 (9.0)" in describe([found], 10_000).markdown()


def test_what_reconcile_could_not_say_is_told_and_hides_no_other_figure() -> None:
    found = usual()
    found.reconcile = "ended with code 1"
    assert " failed |" in describe([found], 10_000).markdown()
    assert measured(found, found)["M"] == 0.0


def test_what_is_extrapolated_follows_from_what_was_measured() -> None:
    known = measured(usual(), outcome(10, 100.0))
    assert (known["A"], known["D"], known["E"], known["N"]) == (100_000, 50_000, 7.5, 500)
    found = {figure.letter: figure.value for figure in extrapolated(known)}
    assert found["a"] == "1,600,000 messages/s"  # 16 times the cores
    assert found["d"] == "2.00 TB"
    assert len(found) == len(extrapolated(known))
    assert [table.title.endswith("never run") for table in tables(usual(), outcome(10, 100.0))] == [
        False,
        True,
    ]


def test_a_command_tells_what_it_said_when_and_what_it_answered() -> None:
    ran = run(
        [sys.executable, "-c", "import sys; print(input()); print('said', file=sys.stderr)"],
        given="a\n",
        limit=30,
    )
    assert (ran.output, [line for _, line in ran.said]) == ("a\n", ["said"])
    assert 0 < ran.said[0][0] <= ran.seconds


def test_the_peak_memory_of_a_childs_child_is_seen() -> None:
    inner = "import time; held = bytearray(80_000_000); time.sleep(1)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    ran = run([sys.executable, "-c", outer], limit=60)
    assert max(ran.peaks.values()) > 80_000_000


def test_a_command_that_fails_is_an_error_with_its_words() -> None:
    with pytest.raises(RuntimeError, match=r"ended with code 3(.|\n)*no space"):
        run([sys.executable, "-c", "import sys; print('no space', file=sys.stderr); sys.exit(3)"], limit=30)


def test_a_command_that_does_not_end_is_ended() -> None:
    with pytest.raises(TimeoutError, match="not done within"):
        run([sys.executable, "-c", "import time; time.sleep(600)"], limit=0.5)


def report(*names: str, date: str = "today") -> Report:
    """A report of empty sections, the export's with its tables."""
    plan = tables(usual(), outcome(10, 100.0))
    floors = [Floor("rate", 2.5, 2.0, "x", at_least=True)]
    sections = [Section(name, name, "How.", list(plan) if name == "export" else [], floors) for name in names]
    return Report({"date": date}, sections)


def test_a_section_measured_alone_takes_its_place_among_those_of_an_earlier_run() -> None:
    earlier = report("drain", "export", "send", date="yesterday")
    joined = report("export").into(earlier.json(), ["drain", "send", "export"])
    assert [section.name for section in joined.sections] == ["drain", "send", "export"]
    assert joined.machine == {"date": "yesterday"}
    assert joined.sections[0] == earlier.sections[0]
    assert joined.sections[-1].method.startswith("(Of a run of its own, today")


def test_the_document_takes_the_figures_and_keeps_its_words() -> None:
    document = Path(__file__).parents[3] / "docs" / "operations" / "warehouse-scale.md"
    once = copied(report("export").json(), document.read_text())
    assert "a rate of the cluster: A / O x 64" in once
    assert "1,600,000 messages/s" in once
    assert copied(report("export").json(), once) == once
    assert "## What would break first" in once


def test_results_without_an_export_are_no_figures() -> None:
    with pytest.raises(ValueError, match="no figures of the export"):
        copied(report("drain").json(), "")
