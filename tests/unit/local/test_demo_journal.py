"""The demo's journals: what is written is read again, and a reader never sees half a line."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from outbox_local.demo import journal
from outbox_local.demo.journal import Crash, Entry, FlightOutcome, Record
from outbox_relay.proving.tails import JournalTail

texts = st.none() | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape"))


@given(texts, texts, st.lists(st.tuples(st.text(), texts)))
def test_a_record_is_read_as_it_was_written(
    key: str | None, value: str | None, headers: list[tuple[str, str | None]]
) -> None:
    record = Record(3, 17, 1_300_000_000_000, 1.5, key, value, tuple(headers))
    line = journal.line(record)
    assert line.count("\n") == 1
    assert journal.record(line) == record


def test_an_entry_and_a_crash_are_read_as_they_were_written(tmp_path: Path) -> None:
    entry = Entry(0, 1, "N1", 2, FlightOutcome.ROLLED_BACK, 1.25, 1.5, 1.75)
    (tmp_path / "entries").write_text(journal.line(entry))
    assert list(journal.entries([tmp_path / "entries"])) == [entry]
    (tmp_path / "crash").write_text(journal.line(Crash(2.5)))
    assert journal.crash(tmp_path / "crash") == Crash(2.5)
    assert journal.crash(tmp_path / "none") is None


def test_a_tail_reads_whole_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    tail = JournalTail(path)
    assert tail.new_lines() == []
    with path.open("w") as file:
        for text, lines in (("on", []), ("e\ntw", ["one"]), ("", []), ("o\nthree\n", ["two", "three"])):
            file.write(text)
            file.flush()
            assert tail.new_lines() == lines


def test_the_last_header_of_a_name_counts() -> None:
    record = Record(0, 0, 0, 0.0, None, None, (("a", "1"), ("b", None), ("a", "2")))
    assert (record.header("a"), record.header("b"), record.header("c")) == ("2", None, None)
