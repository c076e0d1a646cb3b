"""The directions of imports: no circles, and in the library each layer imports only what is below it.

The rules for whole packages are in `test_architecture.py`. `python -m tests.support.rooms --floors outbox` prints what
each room imports.
"""

from __future__ import annotations

import ast
import functools

import pytest

from tests.support import rooms
from tests.support.sources import parse, walk

pytestmark = pytest.mark.xdist_group("sources")

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "outbox.partitioning": ("outbox.errors", "outbox.partitioning"),
    "outbox.message": ("outbox.errors", "outbox.partitioning", "outbox.validation"),
    "outbox.codecs": (
        "outbox.codecs",
        "outbox.drivers",
        "outbox.errors",
        "outbox.extras",
        "outbox.message",
        "outbox.sessions",
        "outbox.statements",
        "outbox.validation",
    ),
    "outbox.operations": (
        "outbox.cloudevents",
        "outbox.codecs",
        "outbox.durations",
        "outbox.errors",
        "outbox.message",
        "outbox.operations",
        "outbox.partitioning",
        "outbox.records",
        "outbox.statements",
        "outbox.tracing",
        "outbox.validation",
        "outbox.wire",
    ),
    "outbox.callbacks": (
        "outbox.callbacks",
        "outbox.checking",
        "outbox.errors",
        "outbox.operations",
        "outbox.records",
    ),
    "outbox.checking": (
        "outbox.backoff",
        "outbox.checking",
        "outbox.drivers",
        "outbox.errors",
        "outbox.operations",
        "outbox.records",
        "outbox.sessions",
        "outbox.statements",
        "outbox.validation",
    ),
    "outbox.inbox": (
        "outbox.backoff",
        "outbox.codecs",
        "outbox.drivers",
        "outbox.errors",
        "outbox.extras",
        "outbox.inbox",
        "outbox.probes",
        "outbox.sessions",
        "outbox.statements",
        "outbox.tracing",
        "outbox.validation",
        "outbox.wire",
    ),
    "outbox.sessions": ("outbox.statements",),
    "outbox.testing": (
        "outbox.calls",
        "outbox.checking",
        "outbox.drivers",
        "outbox.errors",
        "outbox.inbox",
        "outbox.operations",
        "outbox.partitioning",
        "outbox.records",
        "outbox.statements",
        "outbox.testing",
        "outbox.wire",
    ),
    "outbox.rocketmq": (
        "outbox.checking",
        "outbox.codecs",
        "outbox.drivers",
        "outbox.durations",
        "outbox.errors",
        "outbox.inbox",
        "outbox.message",
        "outbox.operations",
        "outbox.partitioning",
        "outbox.records",
        "outbox.rocketmq",
        "outbox.sessions",
        "outbox.statements",
        "outbox.tracing",
        "outbox.validation",
    ),
    "outbox.drivers": ("outbox.drivers", "outbox.errors", "outbox.statements"),
    "outbox.adapters": (
        "outbox.adapters",
        "outbox.calls",
        "outbox.codecs",
        "outbox.drivers",
        "outbox.errors",
        "outbox.extras",
        "outbox.operations",
        "outbox.statements",
        "outbox.tracing",
    ),
    "outbox.calls": (
        "outbox.codecs",
        "outbox.drivers",
        "outbox.durations",
        "outbox.message",
        "outbox.operations",
        "outbox.records",
        "outbox.statements",
        "outbox.tracing",
    ),
    "outbox.client": ("outbox.calls", "outbox.drivers", "outbox.statements"),
    "outbox.validation": ("outbox.cloudevents", "outbox.errors", "outbox.wire"),
    "outbox.cloudevents": ("outbox.cloudevents", "outbox.errors", "outbox.wire"),
    "outbox.durations": ("outbox.errors",),
    "outbox.backoff": (),
    "outbox.errors": (),
    "outbox.extras": (),
    "outbox.outside_calls": (
        "outbox.calls",
        "outbox.checking",
        "outbox.durations",
        "outbox.errors",
        "outbox.message",
        "outbox.records",
    ),
    "outbox.opentelemetry": (
        "outbox.errors",
        "outbox.extras",
        "outbox.message",
        "outbox.tracing",
        "outbox.wire",
    ),
    "outbox.probes": (),
    "outbox.records": (),
    "outbox.statements": (),
    "outbox.tracing": ("outbox.message",),
    "outbox.wire": (),
}
"""A layer of the library, and the only modules of the library that it may import."""


SERVICE = rooms.ROOT / "relay" / "outbox_relay"
COMMON = {"errors", "options", "source", "statements"}
ROOMS: dict[str, dict[str, set[str]]] = {
    "relay/outbox_relay": {
        "text": set(),
        "calls": set(),
        "database": {"calls", "text"},
        "downloads": {"text"},
        "warehouse": {"downloads", "text"},
        "publisher": {"database", "text"},
        "checker": {"calls", "database", "text"},
        "retention": {"database", "text", "warehouse"},
        "alarms": {"calls", "database", "text"},
        "operations": {"database", "publisher", "text"},
        "console": {"database", "operations", "text"},
        "testing": {"database", "operations", "publisher"},
        "proving": {"database", "operations", "publisher", "text"},
        "monitoring": {"checker", "database", "operations", "publisher", "text"},
        "cli": {
            *("alarms", "calls", "checker", "console", "database", "monitoring", "operations"),
            *("proving", "publisher", "retention", "text", "warehouse"),
        },
        "__main__": {"cli"},
    },
    "local/outbox_local": {"stack": set(), "demo": {"stack"}, "shop": {"demo", "stack"}, "dev": {"stack"}},
    "spark_etl/outbox_etl": {
        "errors": set(),
        "outcome": set(),
        "statements": set(),
        "terminal": set(),
        "failures": {"errors"},
        "options": {"errors"},
        "session": {"errors", "options"},
        "source": {"errors", "options", "statements"},
        "warehouse": {*COMMON, "session"},
        "reconcile": {*COMMON, "arrow", "warehouse"},
        "report": {*COMMON, "failures", "reconcile", "warehouse"},
        "arrow": {*COMMON, "failures", "warehouse"},
        "export": {*COMMON, "arrow", "outcome", "reconcile", "warehouse"},
        "main": {
            *("errors", "export", "failures", "options", "reconcile"),
            *("report", "session", "terminal", "warehouse"),
        },
        "__main__": {"main"},
    },
}
"""What each room of a package may import of the same package."""
LOCAL_FROM_SERVICE = {
    "stack": {"cli", "downloads", "text"},
    "demo": {"cli", "database", "downloads", "operations", "proving", "publisher", "text", "warehouse"},
    "shop": {"cli", "downloads", "operations", "proving", "text"},
    "dev": {"cli", "database", "downloads", "operations", "proving", "text"},
}
"""What each room of the local servers may import of the service."""


@pytest.mark.parametrize("package", ROOMS)
def test_a_room_imports_only_the_rooms_below_it(package: str) -> None:
    arrows, allowed = rooms.picture(rooms.ROOT / package).arrows, ROOMS[package]
    assert arrows.keys() == allowed.keys(), "state what a new room may import"
    faults = [
        f"{package}/{room} imports {other}: it may import only {', '.join(sorted(allowed[room])) or 'nothing'}"
        for room in arrows
        for other in sorted(arrows[room] - allowed[room])
    ]
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize("room", LOCAL_FROM_SERVICE)
def test_a_room_of_the_local_servers_imports_few_rooms_of_the_service(room: str) -> None:
    known = rooms.modules(SERVICE)
    found = {
        module.split(".")[1]: path
        for path in (rooms.ROOT / "local" / "outbox_local" / room).rglob("*.py")
        for module in rooms.imported(parse(path), known)
        if "." in module
    }
    assert found, "the imports were found"
    faults = [
        f"{path.relative_to(rooms.ROOT)} imports outbox_relay.{other}: {room} may not"
        for other, path in found.items()
        if other not in LOCAL_FROM_SERVICE[room]
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_each_layer_of_the_library_is_listed() -> None:
    found = rooms.picture(rooms.ROOT / "outbox").arrows
    assert MAY_IMPORT.keys() == {f"outbox.{room}" for room in found}, "state what a new layer may import"


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
        f"{importer} imports {module}: {layer} may import only {', '.join(MAY_IMPORT[layer]) or 'nothing'}"
        for importer, modules in library_imports().items()
        if rooms.within(importer, layer)
        for module in sorted(modules)
        if not any(rooms.within(module, allowed) for allowed in MAY_IMPORT[layer])
    ]
    assert not faults, "\n" + "\n".join(faults)


@functools.cache
def library_imports() -> dict[str, set[str]]:
    """Each module of the library, and the modules of the library that it imports."""
    known = rooms.modules(rooms.ROOT / "outbox")
    return {name: set(rooms.imported(parse(path), known)) for name, path in known.items()}


def service_imports() -> dict[str, set[str]]:
    """Each file of the service, by its path below the package, and the modules that it imports."""
    found = {}
    for path in sorted(SERVICE.rglob("*.py")):
        tree = parse(path)
        modules = {f"{module}.{name}" if name else module for _, module, name in rooms.imports(tree)}
        if any(isinstance(node, ast.Name) and node.id == "print" for node in walk(tree)):
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
        or any(rooms.within(module, printer) for printer in ("click", "rich", "outbox_relay.cli"))
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_what_the_rooms_of_the_service_share_imports_no_room() -> None:
    folders = {path.parent.name for path in SERVICE.glob("*/__init__.py")}
    shared = {name for name in service_imports() if name.startswith("text/")}
    assert {path.name for path in SERVICE.glob("*.py")} <= {"__init__.py", "__main__.py"}, "give it a room"
    faults = [
        f"{name} imports {module}: what the rooms share is below them"
        for name, modules in service_imports().items()
        if name in shared
        for module in sorted(modules)
        if any(rooms.within(module, f"outbox_relay.{room}") for room in folders - {"text"})
    ]
    assert not faults, "\n" + "\n".join(faults)
