"""The import picture of each package: rooms, floors, arrows and circles of imports.

    python -m tests.support.rooms                             # the numbers of every package, and its circles
    python -m tests.support.rooms --floors relay/outbox_relay # what each room imports, from the top floor down

A room is a module or a folder directly inside of a package. An arrow is an import from one room to another, also
inside of functions, under TYPE_CHECKING and by `import_module`. A room's floor is one above the highest room that it
imports, where all rooms of a circle count as one. An `__init__` that only hands names on, and a short module that no
import ties to the rest, are no rooms.
"""

from __future__ import annotations

import argparse
import ast
import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.sources import parse, walk

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = (
    "outbox",
    "relay/outbox_relay",
    "local/outbox_local",
    "migrations/outbox_migrations",
    "spark_etl/outbox_etl",
)
FACE = 40
"""Lines below which an `__init__` without definitions is a page of contents and no room."""
SMALL = 40
"""Lines below which a module without an arrow is no room."""

Arrows = dict[str, set[str]]


@dataclass(frozen=True)
class Picture:
    """What the imports between the rooms of one package look like."""

    package: str
    lines: Mapping[str, int]
    arrows: Mapping[str, set[str]]
    circles: list[list[str]]
    """Files of the package, at any depth, that import each other."""

    @property
    def loops(self) -> list[list[str]]:
        """Rooms that import each other."""
        return [sorted(each) for each in components(self.arrows) if len(each) > 1]

    @property
    def floors(self) -> int:
        """The longest way up, each circle of rooms counted once."""
        return max(floors_of(self.arrows).values(), default=0)


def modules(package: Path) -> dict[str, Path]:
    """The modules of a package by their dotted names."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


@functools.cache
def within(module: str, package: str) -> bool:
    """Whether a module is the package or a part of it."""
    return module == package or module.startswith(f"{package}.")


def imports(tree: ast.Module) -> tuple[tuple[int, str, str], ...]:
    """Line, module and imported name of every absolute import, wherever it stands; also by `import_module("…")`.

    The name is empty where the module itself is imported.
    """
    return tuple(found for node in walk(tree) for found in _imports(node))


def _imports(node: ast.AST) -> Iterator[tuple[int, str, str]]:
    match node:
        case ast.Import(names=names):
            yield from ((node.lineno, alias.name, "") for alias in names)
        case ast.ImportFrom(module=str(module), names=names, level=0):
            yield from ((node.lineno, module, alias.name) for alias in names)
        case ast.Call(
            func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(module)), *_],
        ):
            yield node.lineno, module, ""


def imported(tree: ast.Module, known: Mapping[str, Path]) -> Iterator[str]:
    """The known modules that a module imports."""
    for _, module, name in imports(tree):
        inner = f"{module}.{name}"
        if inner in known or module in known:
            yield inner if inner in known else module


def is_face(path: Path, tree: ast.Module) -> bool:
    """Whether an `__init__` only hands names on."""
    short = len(path.read_text(encoding="utf-8").splitlines()) < FACE
    return path.name == "__init__.py" and short and not any(isinstance(n, DEFINITIONS) for n in tree.body)


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def picture(package: Path) -> Picture:
    """Read one package."""
    known = modules(package)
    trees = {name: parse(path) for name, path in known.items()}
    files = {name: set(imported(tree, known)) - {name} for name, tree in trees.items()}
    top = package.name
    faces = {name for name, path in known.items() if is_face(path, trees[name])}

    def room(name: str) -> str:
        return "__init__" if name == top else name.split(".")[1]

    lines: dict[str, int] = {}
    arrows: Arrows = {}
    for name, path in known.items():
        if name == top and name in faces:
            continue
        lines[room(name)] = lines.get(room(name), 0) + len(path.read_text(encoding="utf-8").splitlines())
        arrows.setdefault(room(name), set())
    for name, others in files.items():
        if room(name) in arrows:
            arrows[room(name)] |= {room(other) for other in others} & arrows.keys() - {room(name)}
    tied = {each for each in arrows if arrows[each]} | set().union(*arrows.values())
    rooms = {each for each in arrows if each in tied or lines[each] >= SMALL}
    return Picture(
        package=str(package.relative_to(ROOT)),
        lines={each: lines[each] for each in rooms},
        arrows={each: arrows[each] for each in rooms},
        circles=[sorted(each) for each in components(files) if len(each) > 1],
    )


def components(arrows: Mapping[str, set[str]]) -> list[set[str]]:
    """The strongly connected parts, lowest first (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(arrows.get(name, ())):
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            part = set()
            while name not in part:
                part.add(stack.pop())
            found.append(part)

    for name in sorted(arrows):
        if name not in order:
            visit(name)
    return found


def floors_of(arrows: Mapping[str, set[str]]) -> dict[str, int]:
    """The floor of each room; 1 is the ground."""
    floors: dict[str, int] = {}
    for part in components(arrows):
        below = [floors[other] for name in part for other in arrows[name] if other not in part]
        floors |= dict.fromkeys(part, 1 + max(below, default=0))
    return floors


def described(found: Picture, *, detailed: bool) -> Iterator[str]:
    """One package in lines: its numbers, its circles, and each floor on request."""
    count = sum(map(len, found.arrows.values()))
    yield (
        f"{found.package}: {len(found.arrows)} rooms, {found.floors} floors, {count} arrows, "
        f"{len(found.loops)} circles of rooms, {len(found.circles)} circles of files"
    )
    yield from (f"  rooms that import each other: {', '.join(loop)}" for loop in found.loops)
    yield from (f"  files that import each other: {', '.join(circle)}" for circle in found.circles)
    floors = floors_of(found.arrows) if detailed else {}
    for name in sorted(floors, key=lambda each: (-floors[each], each)):
        below = ", ".join(sorted(found.arrows[name])) or "nothing"
        yield f"  floor {floors[name]:2}  {name} ({found.lines[name]} lines) -> {below}"


def main() -> None:
    """Print the picture of every package, or of those that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("packages", nargs="*", default=[p for p in PACKAGES if (ROOT / p).is_dir()])
    parser.add_argument("--floors", action="store_true", help="list each floor's rooms and what they import")
    options = parser.parse_args()
    for package in options.packages:
        for line in described(picture(ROOT / package), detailed=options.floors):
            sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
