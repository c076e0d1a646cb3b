"""One noun has one meaning: a name of a class, function or constant is defined once in a package.

The directions of imports are in `test_import_layers.py`.
"""

from __future__ import annotations

import ast
import functools
import re

import pytest

from tests.support import rooms
from tests.support.sources import parse, walk

pytestmark = pytest.mark.xdist_group("sources")

NO_CLASS = re.compile(r"Wish|Half(?!Message)|Halves|Verdict|Verb|Walk|Stray|Look|_Sends|_Produces")
"""Parts of class names that the glossary replaces."""


def test_no_class_of_the_library_has_a_refused_name() -> None:
    faults = [
        f"{name} in {', '.join(where)}" for name, where in classes("outbox").items() if NO_CLASS.search(name)
    ]
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize("package", rooms.PACKAGES)
def test_a_package_has_one_class_of_a_name(package: str) -> None:
    faults = [
        f"{name} is a class of {', '.join(where)}: one noun, one meaning"
        for name, where in classes(package).items()
        if len(where) > 1
    ]
    assert not faults, "\n" + "\n".join(faults)


ALLOWED_REPEATS = {
    ("SQL", ""): "the statements of the module's own file",
    ("STATEMENTS", ""): "the statements of the module's own file",
    ("log", "outbox"): "the module's own logger",
    ("main", ""): "starts a process",
    ("Connection", "outbox"): "psycopg's, in rooms that do not import each other",
    ("run", "outbox.drivers"): "the same operation, synchronous and asynchronous",
    ("park", "outbox.inbox"): "a plan, and what runs it",
    (
        "repair",
        "outbox_relay",
    ): "of a right that is missing, loaded when it is needed; of messages that are lost",
    ("connections_of", "outbox.inbox"): "of an engine of SQLAlchemy, of an alias of Django",
    ("FIRST_PAUSE", "outbox.inbox"): "one of Kafka's client, one of threads",
    ("LAST_PAUSE", "outbox.inbox"): "one of Kafka's client, one of threads",
}
"""Names of functions and constants that may be imported from several modules below a package, and why."""


def is_allowed(name: str, where: list[str]) -> bool:
    """Whether all modules that define a name are below a package that may repeat it."""
    return any(
        name == repeated and all(not package or rooms.within(module, package) for module in where)
        for repeated, package in ALLOWED_REPEATS
    )


@pytest.mark.parametrize("package", rooms.PACKAGES)
def test_a_package_has_one_definition_of_a_name_that_is_imported(package: str) -> None:
    faults = [
        f"{name} is defined in {', '.join(where)}: share it if it is the same, else rename it"
        for name, where in repeats(package).items()
        if not is_allowed(name, where)
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_each_allowed_repeat_is_there() -> None:
    found = set().union(*(repeats(package) for package in rooms.PACKAGES))
    assert {name for name, _ in ALLOWED_REPEATS} == found


@functools.cache
def repeats(package: str) -> dict[str, list[str]]:
    """The public functions and constants of several modules of a package, one of which others import by name."""
    places: dict[str, list[str]] = {}
    known = rooms.modules(rooms.ROOT / package)
    for module, path in known.items():
        for name in sorted(definitions(parse(path))):
            places.setdefault(name, []).append(module)
    used = imported_names()
    return {
        name: where
        for name, where in places.items()
        if len(where) > 1 and not name.startswith("_") and any((module, name) in used for module in where)
    }


def definitions(tree: ast.Module) -> set[str]:
    """The functions and constants of a module, without the commands of click: these have the names of commands."""
    found = set()
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if not any("command" in ast.unparse(each) for each in node.decorator_list):
                    found.add(name)
            case ast.Assign(targets=targets):
                found |= {each.id for each in ast.walk(ast.Tuple(targets)) if isinstance(each, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return found


@functools.cache
def imported_names() -> set[tuple[str, str]]:
    """Module and name of everything that a module of any package imports by name."""
    return {
        (module, name)
        for package in rooms.PACKAGES
        for path in rooms.modules(rooms.ROOT / package).values()
        for _, module, name in rooms.imports(parse(path))
        if name
    }


@functools.cache
def classes(package: str) -> dict[str, list[str]]:
    """The modules of a package in which each class name is defined, private ones included."""
    places: dict[str, list[str]] = {}
    for name, path in rooms.modules(rooms.ROOT / package).items():
        for node in walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    return places
