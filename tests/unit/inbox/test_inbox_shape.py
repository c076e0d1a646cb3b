"""Ratchets of the consumer half: small classes, one base of ours, and no more lines than there are.

Each figure may fall and may not rise. If a limit and the sense of the code disagree, say so in the change.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from outbox import inbox
from tests.support.sources import parse, walk

FOLDER = Path(str(inbox.__file__)).parent
MOST_ATTRIBUTES, MOST_METHODS = 15, 25
MOST_LINES = 8_760
"""Of all files; aims at 6,600."""


def classes() -> dict[str, ast.ClassDef]:
    """The classes of the package, by name."""
    trees = [parse(path) for path in sorted(FOLDER.rglob("*.py"))]
    return {node.name: node for tree in trees for node in walk(tree) if isinstance(node, ast.ClassDef)}


def lineage(found: dict[str, ast.ClassDef], name: str) -> Iterator[ast.ClassDef]:
    """A class, and those of ours that it inherits from."""
    yield found[name]
    for base in found[name].bases:
        if (inherited := ast.unparse(base).partition("[")[0]) in found:
            yield from lineage(found, inherited)


def attributes(node: ast.ClassDef) -> set[str]:
    """What a class declares, or assigns to `self`."""
    declared = {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
    stored = {
        each.attr
        for each in walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
        if ast.unparse(each.value) == "self"
    }
    return declared | stored


def methods(node: ast.ClassDef) -> set[str]:
    """The names of its methods."""
    return {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_no_class_of_the_consumer_half_has_much_state_or_many_methods() -> None:
    found = classes()
    faults = []
    for name in found:
        own = list(lineage(found, name))
        state = set[str]().union(*map(attributes, own))
        calls = set[str]().union(*map(methods, own))
        if len(state) > MOST_ATTRIBUTES or len(calls) > MOST_METHODS:
            faults.append(f"{name}: {len(state)} attributes, {len(calls)} methods")
    assert faults == []


def test_a_class_of_the_consumer_half_has_one_base_of_ours_at_most() -> None:
    found = classes()
    faults = [
        name
        for name, node in found.items()
        if sum(ast.unparse(base).partition("[")[0] in found for base in node.bases) > 1
    ]
    assert faults == []


def test_the_consumer_half_has_no_more_lines_than_before() -> None:
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in FOLDER.rglob("*.py"))
    assert lines <= MOST_LINES, "delete some, or say why there have to be more"
