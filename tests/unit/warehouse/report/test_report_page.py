"""The report's page: whole, harmless whatever things are called, and told in words beside every picture."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any

import pytest

from outbox_etl.report.facts import OTHER, folded, step_of
from outbox_etl.report.page import page
from outbox_etl.report.text import edge, key_hash, lasting
from tests.support.report_facts import NASTY, RECONCILED, facts, figures, over, run


class Reader(HTMLParser):
    """Reads a page as a browser does: its elements, their attributes, and the text of each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    @property
    def text(self) -> str:
        """All that is shown."""
        return " ".join(
            " ".join(" ".join(each) for name, each in self.texts.items() if name != "style").split()
        )


def test_a_page_is_well_formed_and_needs_nothing_else() -> None:
    text = page(facts())
    read = Reader(text)
    assert not read.open
    assert not {"script", "img", "link", "iframe", "object", "foreignobject"} & {tag for tag, _ in read.tags}
    links = [
        value for _, attrs in read.tags for name, value in attrs.items() if name.endswith(("href", "src"))
    ]
    assert all((value or "").startswith("#") for value in links)
    assert not re.search(r"url\((?!#)|@import|https?:", text)
    assert len(text) < 1_000_000


def test_every_id_is_one_elements_and_every_reference_finds_it() -> None:
    read = Reader(page(facts()))
    ids = [attrs["id"] for _, attrs in read.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    wanted = {
        word
        for _, attrs in read.tags
        for name, value in attrs.items()
        if name == "aria-labelledby"
        for word in (value or "").split()
    }
    wanted |= {
        str(value)[1:] for _, attrs in read.tags for name, value in attrs.items() if name.endswith("href")
    }
    assert wanted <= set(ids)


def test_every_picture_has_a_title_a_description_and_its_numbers_as_a_table() -> None:
    text = page(facts())
    pictures = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    assert len(pictures) == 8
    for picture in pictures:
        read = Reader(picture)
        [svg] = [attrs for tag, attrs in read.tags if tag == "svg"]
        assert svg["role"] == "img"
        assert read.texts["title"][0]
        assert read.texts["desc"] == read.texts["figcaption"]
        assert read.texts["td"]


def test_names_are_text_wherever_they_stand() -> None:
    found = [
        {"kind": "missing", "store": "kafka", "message_id": NASTY, "topic": NASTY, "partition": 0, "offset": 7,
         "detail": NASTY}
    ]  # fmt: skip
    sums = dict.fromkeys(("postgres_checksum", "kafka_checksum", "warehouse_checksum"), "aa")
    partition = {"topic": NASTY, "partition": 0, "postgres": 1, "kafka": 1, "warehouse": 1, "foreign": 0,
                 "no_longer_in_kafka": 0, **sums}  # fmt: skip
    answer = {**RECONCILED, "problems": 1, "totals": {NASTY: 1}, "found": found, "notes": {NASTY: 2},
              "partitions": [partition], "certified": False}  # fmt: skip
    story = facts(
        run=run(command="reconcile", answer=answer, error=NASTY, target=NASTY, source=NASTY),
        figures=figures(NASTY, NASTY),
        unread=[NASTY],
    )
    text = page(story)
    read = Reader(text)
    assert not read.open
    assert "script" not in {tag for tag, _ in read.tags}
    assert "<script" not in text
    assert "\u202e" not in text
    assert "\x07" not in text
    assert any("$\\frac{1}{0}$" in each for each in read.texts["text"])  # (no formula)


def test_every_name_can_be_drawn() -> None:
    names = ["_hidden", "$", "日本語", "🛫", "\ud800", "", None, "a\nb", "x" * 300]
    plain = figures()
    many: dict[str, Any] = {
        each: [{**row, "topic": name} for name in names for row in getattr(plain, each)]
        for each in ("topics", "latency", "skew", "gaps")
    }
    read = Reader(page(facts(figures=figures(**many))))
    assert not read.open
    shown = set(read.texts["text"])
    assert {"_hidden", "$", "日本語", "🛫", "\N{REPLACEMENT CHARACTER}", "(empty)", "(none)", "a b"} <= shown


def test_an_empty_warehouse_is_said_to_be_empty() -> None:
    read = Reader(page(facts(watermark=None, figures=None, run=run(answer={}))))
    assert "The warehouse is empty" in read.text
    assert "svg" not in {tag for tag, _ in read.tags}


def test_what_there_is_nothing_of_is_said_and_not_drawn() -> None:
    nothing: dict[str, Any] = dict.fromkeys(
        ("rate", "topics", "latency", "decided_by_day", "decided_by_group", "checks", "skew", "gaps"), ()
    )
    read = Reader(page(facts(figures=figures(**nothing, histogram={}))))
    assert "svg" not in {tag for tag, _ in read.tags}
    assert len(read.texts["h2"]) == 6
    assert read.text.count("in these days") == 5


def test_a_single_day_and_a_single_bucket_are_drawn() -> None:
    assert page(facts(figures=figures(days=1, histogram={6: 1}))).count("<svg") == 8


def test_a_failed_run_says_what_went_wrong_and_shows_what_there_is() -> None:
    read = Reader(page(facts(run=run(answer={}, error="PostgreSQL: connection refused"))))
    assert "connection refused" in read.text
    assert "failed" in read.texts["span"]
    assert "svg" in {tag for tag, _ in read.tags}


def test_a_reconcile_lists_the_first_hundred_findings_with_their_ids() -> None:
    found = [
        {"kind": "missing", "store": "kafka", "message_id": f"id-{number:03}", "topic": "t", "partition": 0,
         "offset": number, "detail": "recorded at this offset"}
        for number in range(150)
    ]  # fmt: skip
    answer = {
        **RECONCILED,
        "problems": 170,
        "totals": {"missing in kafka": 170},
        "found": found,
        "certified": False,
    }
    read = Reader(page(facts(run=run(command="reconcile", answer=answer), figures=None)))
    assert "170 problems: not proven" in read.texts["span"]
    assert [each for each in read.texts["code"] if each.startswith("id-")] == [
        f"id-{n:03}" for n in range(100)
    ]
    assert "Findings: the first 100 of 170" in read.texts["caption"]


def test_partitions_that_differ_come_first_each_number_below_its_name() -> None:
    counts = {"postgres": 7, "kafka": 6, "warehouse": 7, "foreign": 2, "no_longer_in_kafka": 1}
    same = {"postgres_checksum": "aa", "kafka_checksum": "aa", "warehouse_checksum": "aa"}
    partitions = [
        {"topic": "t", "partition": 3, **counts, **same},
        {"topic": "t", "partition": 4, **counts, **same, "kafka_checksum": "bb"},
    ]
    answer = {**RECONCILED, "partitions": partitions}
    text = page(facts(run=run(command="reconcile", answer=answer), figures=None))
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", text)
    plain = [re.sub("<.*?>", "", each) for each in cells]
    head, first = plain[:9], plain[9:18]
    assert dict(zip(head, first, strict=True)) == {
        "topic": "t", "partition": "4", "sums": "differ", "PostgreSQL": "7", "Kafka": "6", "warehouse": "7",
        "foreign": "2", "expired": "1", "checksum": "bb",
    }  # fmt: skip
    assert plain[20] == "agree"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "proven"),
        ({"certified": False}, "nothing new to prove"),
        ({"problems": 1}, "1 problem: not proven"),
    ],
)
def test_the_verdict_stands_in_the_head(changes: dict[str, Any], said: str) -> None:
    read = Reader(page(facts(run=run(command="reconcile", answer={**RECONCILED, **changes}), figures=None)))
    assert read.texts["span"][0] == said


def test_certificates_are_told_with_their_verdict() -> None:
    counts = {"messages": 10, "problems": 0, "doubled": 0, "topics": 2, "partitions": 8}
    one = {
        "lo": 0,
        "hi": 900,
        **counts,
        "checksum": "ab12",
        "verified_at": datetime(2026, 3, 2, 1, tzinfo=UTC),
    }
    read = Reader(page(facts(certificates=[one], figures=None)))
    assert "ab12" in read.texts["code"]
    assert "2026-03-02 01:00:00 UTC" in read.texts["td"]


def test_what_is_left_out_is_counted_as_others() -> None:
    rows = [{"topic": f"t{n}", "sent": 1, "everything": 20, "all_sent": 50} for n in range(12)]
    assert folded(rows, "topic", "sent")[-1] == {"topic": f"{OTHER} (8)", "sent": 38}
    assert folded([{"topic": "t", "sent": 1, **over({"sent": 1})}], "topic", "sent")[-1]["topic"] == "t"


def test_keys_are_shown_as_hashes_only() -> None:
    text = page(facts())
    assert sha256(b"ann").hexdigest()[:8] == key_hash(bytearray(b"ann"))
    assert key_hash(b"ann") in text
    assert ">ann<" not in text


@pytest.mark.parametrize(("minutes", "step"), [((), 60), ((0,), 60), ((0, 10_800), 60), ((0, 10_860), 3_600)])
def test_a_few_hours_are_told_by_the_minute(minutes: tuple[int, ...], step: int) -> None:
    assert step_of([{"moment": each} for each in minutes]) == step


@pytest.mark.parametrize(
    ("bucket", "milliseconds"), [(6, 0.1), (7, 0.2), (8, 0.5), (9, 1), (10, 2), (12, 10), (20, 5_000)]
)
def test_a_bucket_begins_at_one_two_or_five(bucket: int, milliseconds: float) -> None:
    assert edge(bucket) == pytest.approx(milliseconds)


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [
        (0.0, "0 ms"),
        (0.4, "0.4 ms"),
        (12.34, "12.3 ms"),
        (900, "900 ms"),
        (1_500, "1.5 s"),
        (7_200_000, "2 h"),
    ],
)
def test_durations_are_told_in_their_unit(milliseconds: float, said: str) -> None:
    assert lasting(milliseconds) == said
