"""Public prose uses plain words: pages for users and contributors, help texts, and all texts in the code.

Code and the targets of links are skipped.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from outbox_relay.cli.main import main
from tests.support.sources import parse, walk

pytestmark = pytest.mark.xdist_group("sources")

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
    r"(is|are) (?-i:none)|(?<!there )is no(?= (?!longer)\w)": "is not a …; expected …",
    r"whoever|nobody|anew|beside": "name the actor; again; next to",
    r"(?<=, )for(?= (it|they|this|he|she|we|you|that)\b)": "because",
}
"""What is refused, and what to write."""
WORDS = re.compile("|".join(rf"(?P<_{n}>\b(?:{word})\b)" for n, word in enumerate(REFUSED)), re.IGNORECASE)
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`|\]\([^)\s]*\)|<!--.*?-->", re.MULTILINE | re.DOTALL)
SQL_TEXT = re.compile(r"--[^\n]*|'(?P<text>(?:[^'\\]|\\.|'')*)'")
ARGUMENT = re.compile(r"^ *\w+:", re.MULTILINE)
"""An argument in a docstring, whose name is code."""
PACKAGES = ["outbox", "relay/outbox_relay", "local/outbox_local", "spark_etl/outbox_etl"]


def pages() -> Iterator[Path]:
    """Every page for users and contributors."""
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))
    yield from sorted((ROOT / "docs").rglob("*.md"))


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
    assert not faults, "\n" + "\n".join(faults)


DECISIONS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: str(path.name[:4]))
def test_title_and_file_name_of_a_decision_use_plain_words(path: Path) -> None:
    title = path.read_text(encoding="utf-8").partition("\n")[0]
    faults = [
        f"docs/adr/{path.name}: {word!r}: write {instead}"
        for text in (title, path.stem.replace("-", " "))
        for _, word, instead in refused(text)
    ]
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


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each literal with a space, or in an error: what users read in messages, tables and logs."""
    if path.suffix == ".sql":
        source = path.read_text(encoding="utf-8")
        for found in SQL_TEXT.finditer(source):
            if " " in (text := found["text"] or ""):
                yield source.count("\n", 0, found.start()) + 1, text
        return
    nodes = walk(parse(path))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    raised = {id(part) for node in nodes if isinstance(node, ast.Raise) for part in ast.walk(node)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from [(node.lineno, node.value)] if " " in node.value or id(node) in raised else []


@pytest.mark.parametrize("package", [*PACKAGES, "migrations/outbox_migrations"])
def test_texts_that_users_read_use_plain_words(package: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{number}: {word!r} in {text!r}: write {instead}"
        for path in sorted((ROOT / package).rglob("*"))
        if path.suffix in (".py", ".sql")
        for number, text in texts(path)
        for _, word, instead in refused(text)
    ]
    assert not faults, "\n" + "\n".join(faults)


def docstrings(node: ast.Module | ast.ClassDef) -> Iterator[tuple[int, str]]:
    """Line and text of the docstrings of a module or class, and of its public names."""
    name = ""
    for part in node.body:
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and not is_private(name):
            yield part.lineno, str(part.value.value)
        name = ""
        if isinstance(part, ast.Assign | ast.AnnAssign):
            name = ast.unparse(part.targets[0] if isinstance(part, ast.Assign) else part.target)
        elif isinstance(part, ast.ClassDef) and not is_private(part.name):
            yield from docstrings(part)
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and not is_private(part.name):
            yield part.lineno, ast.get_docstring(part) or ""


def is_private(name: str) -> bool:
    """Whether a name begins with one underscore."""
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_of_public_names_use_plain_words(package: str) -> None:
    paths = sorted((ROOT / package).rglob("*.py"))
    faults = [
        f"{path.relative_to(ROOT)}:{line + number - 1}: {word!r}: write {instead}"
        for path in paths
        for line, text in docstrings(parse(path))
        for number, word, instead in refused(ARGUMENT.sub("", text))
    ]
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize("package", ["relay/outbox_relay", "local/outbox_local"])
def test_names_of_classes_use_plain_words(package: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{node.lineno}: class {node.name}: write {instead}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in walk(parse(path))
        if isinstance(node, ast.ClassDef)
        for _, _, instead in refused(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", node.name))
    ]
    assert not faults, "\n" + "\n".join(faults)


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
