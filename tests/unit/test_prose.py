"""Public prose uses plain words: pages for users and contributors, help texts and error messages.

A page that is not yet rewritten stands in `NOT_YET`. The list only shrinks: a page without refused words must be
removed from it. Code and the targets of links are skipped.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from outbox_relay.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
REFUSED = {
    r"answers|answer(ed)? with": "returns, replies",
    r"tells?|told|telling|says?|said": "report, list, log, state",
    r"wish(es|ed)?|wanted": "options, request",
    r"judges?|judged|verdicts?": "decide, decision, eligibility",
    r"looks?(?!-up)|looked|looking": "check, find or read: name the object",
    r"strays?|unproven": "orphans, unverified",
    r"adopts?|adopted": "enqueue, take over: state which",
    r"walk(s|ed|ing)?|met|meets?|lingers?": "scan, page through, find, overdue",
    r"spans? of time": "duration",
    r"careful|cuts?": "single-message mode; truncated, disconnect",
    r"verbs?": "operation, method",
    r"halves": "half messages",
    r"is none|are none|(?<!there )is no(?= (?!longer)\w)": "is not a …; expected …",
    r"whoever|nobody|anew|beside": "name the actor; again; next to",
    r"(?<=, )for(?= (it|they|this|he|she|we|you|that)\b)": "because",
}
"""What is refused, and what to write."""
WORDS = re.compile("|".join(rf"(?P<_{n}>\b(?:{word})\b)" for n, word in enumerate(REFUSED)), re.IGNORECASE)
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`|\]\([^)\s]*\)|<!--.*?-->", re.MULTILINE | re.DOTALL)
NOT_YET: set[str] = {"docs/reference/warehouse.md"}
ERRORS_LEFT = {"outbox": 22, "relay/outbox_relay": 13, "local/outbox_local": 1, "spark_etl/outbox_etl": 13}
"""Refused words in error messages that are not yet rewritten; a change may lower a number and never raise it."""
OLD_DECISIONS = 50
"""Decisions up to this number were written before these rules."""


def pages() -> Iterator[Path]:
    """Every page for users and contributors; no history, no generated table, no old decision."""
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))
    for path in sorted((ROOT / "docs").rglob("*.md")):
        old = path.parent.name == "adr" and (path.name == "README.md" or int(path.name[:4]) <= OLD_DECISIONS)
        if not old and path.name != "features.md":
            yield path


def refused(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, word and what to write instead, for each refused word of a text."""
    text = CODE.sub(lambda found: re.sub(r"\S", " ", found[0]), text)
    for found in WORDS.finditer(text):
        instead = list(REFUSED.values())[int((found.lastgroup or "_0")[1:])]
        yield text.count("\n", 0, found.start()) + 1, found[0], instead


@pytest.mark.parametrize("path", list(pages()), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_uses_plain_words(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    faults = [
        f"{name}:{line}: {word!r}: write {instead}"
        for line, word, instead in refused(path.read_text(encoding="utf-8"))
    ]
    if name in NOT_YET:
        assert faults, f"{name} is rewritten: take it off NOT_YET"
    else:
        assert not faults, "\n" + "\n".join(faults)


def helps(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """The help of a command, of its options, and of the commands below it."""
    yield name, command.help or ""
    yield from ((f"{name} {each.name}", getattr(each, "help", None) or "") for each in command.params)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from helps(found, f"{name} {below}")


def test_the_help_of_commands_uses_plain_words() -> None:
    texts = dict(helps(main, "outbox"))
    assert len(texts) > 100, "the commands were found"
    faults = [
        f"{name} --help: {word!r}: write {instead}"
        for name, text in texts.items()
        for _, word, instead in refused(text)
    ]
    assert not faults, "\n" + "\n".join(faults)


def messages(path: Path) -> Iterator[str]:
    """The texts inside of `raise SomeError(…)`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


@pytest.mark.parametrize("package", ERRORS_LEFT)
def test_no_more_error_messages_use_refused_words(package: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)}: {word!r} in {text!r}: write {instead}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for text in messages(path)
        for _, word, instead in refused(text)
    ]
    assert len(faults) <= ERRORS_LEFT[package], "\n" + "\n".join(faults)


def test_the_list_of_pages_that_are_not_yet_rewritten_names_pages() -> None:
    assert {path.relative_to(ROOT).as_posix() for path in pages()} >= NOT_YET


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The relay answers with a number.", ["answers"]),
        ("`say` is code, and so is [this](say.md).", []),
        ("a name is no text; it is no longer one; there is no such row", ["is no"]),
        ("Asked twice, for it may be late; for that topic", ["for"]),
    ],
)
def test_refused_words_are_found_outside_of_code(text: str, words: list[str]) -> None:
    assert [word for _, word, _ in refused(text)] == words
