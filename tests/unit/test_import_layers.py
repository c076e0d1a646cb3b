"""The directions of imports: no circles, and in the library each layer imports only what is below it.

The rules for whole packages are in `test_architecture.py`. `python -m tests.support.rooms --floors outbox` prints what
each room imports.
"""

from __future__ import annotations

import ast
import functools

import pytest

from tests.support import rooms

MAY_IMPORT = {
    "outbox.partitioning": ("outbox.errors", "outbox.partitioning"),
    "outbox.message": ("outbox.errors", "outbox.headers", "outbox.partitioning", "outbox.validation"),
    "outbox.operations": (
        "outbox.durations",
        "outbox.errors",
        "outbox.message",
        "outbox.operations",
        "outbox.partitioning",
        "outbox.receipt",
        "outbox.records",
        "outbox.resolution",
        "outbox.statements",
        "outbox.validation",
        "outbox.wire",
    ),
    "outbox.callbacks": (
        "outbox.callbacks",
        "outbox.errors",
        "outbox.listeners",
        "outbox.records",
        "outbox.resolution",
    ),
    "outbox.checking": (
        "outbox.callbacks",
        "outbox.checking",
        "outbox.drivers",
        "outbox.errors",
        "outbox.listeners",
        "outbox.operations",
        "outbox.records",
        "outbox.resolution",
        "outbox.statements",
    ),
    "outbox.drivers": ("outbox.drivers", "outbox.errors", "outbox.statements"),
    "outbox.client": (
        "outbox.drivers",
        "outbox.durations",
        "outbox.message",
        "outbox.operations",
        "outbox.receipt",
        "outbox.records",
    ),
}
"""A layer of the library, and the only modules of the library that it may import."""


@pytest.mark.parametrize("package", rooms.PACKAGES)
def test_rooms_do_not_import_each_other(package: str) -> None:
    faults = [
        f"{package}: {', '.join(loop)} import each other: move what they share below them"
        for loop in rooms.picture(rooms.ROOT / package).loops
    ]
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_a_layer_of_the_library_imports_only_what_is_below_it(layer: str) -> None:
    faults = [
        f"{importer} imports {module}: {layer} may import only {', '.join(MAY_IMPORT[layer])}"
        for importer, modules in library_imports().items()
        if within(importer, layer)
        for module in sorted(modules)
        if not any(within(module, allowed) for allowed in MAY_IMPORT[layer])
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_the_library_has_one_class_of_a_name() -> None:
    places: dict[str, list[str]] = {}
    for name, path in rooms.modules(rooms.ROOT / "outbox").items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    faults = [
        f"{name} is a class of {', '.join(where)}: one noun, one meaning"
        for name, where in places.items()
        if len(where) > 1
    ]
    assert not faults, "\n" + "\n".join(faults)


@functools.cache
def library_imports() -> dict[str, set[str]]:
    """Each module of the library, and the modules of the library that it imports."""
    known = rooms.modules(rooms.ROOT / "outbox")
    return {
        name: set(rooms.imported(ast.parse(path.read_text(encoding="utf-8")), known))
        for name, path in known.items()
    }


def within(module: str, package: str) -> bool:
    """Whether a module is the package or a part of it."""
    return module == package or module.startswith(f"{package}.")


SERVICE = rooms.ROOT / "relay" / "outbox_relay"


def service_imports() -> dict[str, set[str]]:
    """Each file of the service, by its path below the package, and the modules that it imports."""
    found = {}
    for path in sorted(SERVICE.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                modules |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                modules.add("print")
        found[path.relative_to(SERVICE).as_posix()] = modules
    return found


def test_only_the_command_line_of_the_service_prints() -> None:
    found = service_imports()
    assert {name.partition("/")[0] for name in found} >= {"cli", "operations", "publisher", "checker"}
    faults = [
        f"{name} uses {module}: return data, and let cli render it"
        for name, modules in found.items()
        # __main__ starts the command line.
        if not name.startswith("cli/") and name != "__main__.py"
        for module in sorted(modules)
        if module == "print"
        or any(within(module, printer) for printer in ("click", "rich", "outbox_relay.cli"))
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_what_the_rooms_of_the_service_share_imports_no_room() -> None:
    folders = [path.parent.name for path in SERVICE.glob("*/__init__.py")]
    faults = [
        f"{name} imports {module}: what the rooms share is below them"
        for name, modules in service_imports().items()
        if "/" not in name and name != "__main__.py"
        for module in sorted(modules)
        if any(within(module, f"outbox_relay.{room}") for room in folders)
    ]
    assert not faults, "\n" + "\n".join(faults)
