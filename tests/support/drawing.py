"""The drawings of docs/concepts/architecture.md, made from the sources.

    python -m tests.support.drawing            # print them
    python -m tests.support.drawing --write    # bring the page up to date

Three parts, each between two marks in the page: which package imports which, which process writes which table, and
the threads and connections of each process. Nothing is run; Python is parsed, SQL is searched for table names.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.support.rooms import PACKAGES, ROOT, imports
from tests.support.sources import parse, walk

PAGE = ROOT / "docs" / "concepts" / "architecture.md"
PROCESSES = {
    "outbox/sql/checking.sql": "checker",
    "outbox/sql/inbox": "consumer",
    "outbox/inbox": "consumer",
    "outbox/rocketmq/consumer": "consumer",
    "relay/outbox_relay/checker": "checker",
    "relay/outbox_relay/calls": "checker",
    "outbox/checking": "checker",
    "outbox": "application",
    "relay/outbox_relay/publisher": "relay",
    "relay/outbox_relay/alarms": "relay",
    "relay/outbox_relay/retention/service.py": "relay",
    "relay/outbox_relay/retention": "retention, relay",
    "relay/outbox_relay/cli/history": "retention",
    "relay/outbox_relay/warehouse": "warehouse",
    "spark_etl": "warehouse",
    "relay/outbox_relay/database": "relay, checker",
    "relay/outbox_relay/monitoring": "relay, checker",
    "relay/outbox_relay/operations": "operator",
    "relay/outbox_relay/console": "operator",
    "relay/outbox_relay/cli": "operator",
    "relay/outbox_relay/proving": "operator",
    "relay/outbox_relay/downloads": "operator",
    "migrations": "database",
}
"""The processes that run the files below a path; the first match counts."""
TITLES = {
    "application": "your application (outbox)",
    "consumer": "your consumer (outbox.inbox)",
    "relay": "outbox relay run",
    "checker": "outbox checker run, or GroupChecker",
    "operator": "the outbox command",
    "retention": "outbox history",
    "warehouse": "outbox etl",
    "database": "triggers and functions in PostgreSQL",
}
WRITES = re.compile(
    r"\b(?:INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+(?:ONLY\s+)?outbox\.([a-z_]+)", re.IGNORECASE
)
READS = re.compile(r"(?<!DELETE )\b(?:FROM|JOIN)\s+(?:ONLY\s+)?outbox\.([a-z_]+)(?!\w*\()", re.IGNORECASE)
TABLE = re.compile(r"^CREATE TABLE outbox\.([a-z_]+) \(", re.MULTILINE)


def processes_of(path: Path) -> list[str]:
    """The processes that run a file."""
    name = path.relative_to(ROOT).as_posix()
    return next((found.split(", ") for part, found in PROCESSES.items() if name.startswith(part)), [])


def tables() -> list[str]:
    """The tables of the schema, in the order in which they are made."""
    found = []
    for path in sorted((ROOT / "migrations").rglob("*.sql")):
        found += TABLE.findall(path.read_text(encoding="utf-8"))
    return [name for name in dict.fromkeys(found) if not name.endswith("partition_lock")]


def accesses(kind: re.Pattern[str]) -> dict[str, set[str]]:
    """Per process, the tables that its statements write or read."""
    known = set(tables())
    found: dict[str, set[str]] = {name: set() for name in TITLES}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.sql")):
            text = re.sub(r"--.*", "", path.read_text(encoding="utf-8"))
            for process in processes_of(path):
                found[process] |= known & set(kind.findall(text))
    return found


def packages_drawing() -> Iterator[str]:
    """Which package imports which."""
    names = {Path(package).name: package for package in PACKAGES}
    yield "```mermaid"
    yield "flowchart TD"
    for name, package in names.items():
        found: set[str] = set()
        for path in (ROOT / package).rglob("*.py"):
            tree = parse(path)
            found |= {module.partition(".")[0] for _, module, _ in imports(tree)}
        yield f'    {name}["{name}"]'
        yield from (f"    {name} --> {other}" for other in sorted(found & names.keys() - {name}))
    yield "```"


def tables_drawing() -> Iterator[str]:
    """Which process writes which table, and a table with what it reads besides."""
    writes, reads = accesses(WRITES), accesses(READS)
    yield "```mermaid"
    yield "flowchart LR"
    for process, title in TITLES.items():
        if writes[process]:
            yield f'    {process}["{title}"]'
    yield from (f"    t_{name}[({name})]" for name in tables())
    for process, names in writes.items():
        yield from (f"    {process} --> t_{name}" for name in tables() if name in names)
    yield "```"
    yield ""
    yield "| process | writes | reads besides |"
    yield "|---|---|---|"
    for process, title in TITLES.items():
        cells = (writes[process], reads[process] - writes[process])
        text = " | ".join(
            ", ".join(f"`{name}`" for name in tables() if name in cell) or "–" for cell in cells
        )
        yield f"| {title} | {text} |"


def threads_table() -> Iterator[str]:
    """The threads that each process starts, and the names of its connections in pg_stat_activity."""
    threads: dict[str, set[str]] = {name: set() for name in TITLES}
    connections: dict[str, set[str]] = {name: set() for name in TITLES}
    trees = {path: parse(path) for path in modules()}
    classes = thread_classes(trees.values())
    for path, tree in trees.items():
        for process in processes_of(path):
            threads[process] |= set(thread_names(tree, classes))
            connections[process] |= set(connection_names(tree))
    yield "| process | threads that it starts | connections by name |"
    yield "|---|---|---|"
    for process, title in TITLES.items():
        if threads[process] or connections[process]:
            cells = (threads[process], connections[process])
            text = " | ".join(", ".join(f"`{name}`" for name in sorted(cell)) or "–" for cell in cells)
            yield f"| {title} | {text} |"


def modules() -> Iterator[Path]:
    """Every Python file of the packages."""
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def thread_classes(trees: Iterable[ast.Module]) -> set[str]:
    """`Thread` and the names of all classes that inherit from it."""
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for tree in trees
        for node in walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found, before = {"Thread"}, set[str]()
    while found != before:
        before = found
        found = found | {name for name, inherited in bases.items() if inherited & found}
    return found


def thread_names(tree: ast.Module, classes: set[str]) -> Iterator[str]:
    """The names of the threads that a module starts; a task of `Periodic` gives its own to its thread."""
    for node in walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func).rpartition(".")[2]
        given = {each.arg: each.value for each in node.keywords if each.arg}
        value: ast.expr | None = None
        if called == "ThreadPoolExecutor":
            value = given.get("thread_name_prefix")
        elif called == "Thread" or (called == "__init__" and "daemon" in given):
            value = given.get("name")
        elif called in classes and node.args:
            value = node.args[0]
        elif called == "Task" and node.args:
            yield readable(node.args[0])
        if isinstance(value, ast.Constant | ast.JoinedStr):
            yield readable(value)


def connection_names(tree: ast.Module) -> Iterator[str]:
    """The names that a module gives to connections: in a call to connect, or as `application_name`."""
    nodes = walk(tree)
    assigned = {ast.unparse(node.targets[0]): node.value for node in nodes if isinstance(node, ast.Assign)}
    for node in nodes:
        values: list[ast.expr] = []
        if isinstance(node, ast.Call) and "connect" in ast.unparse(node.func).rpartition(".")[2]:
            values = [*node.args, *(each.value for each in node.keywords)]
        elif isinstance(node, ast.Dict):
            stated = zip(node.keys, node.values, strict=True)
            values = [value for key, value in stated if key and readable(key) == "application_name"]
        for value in values:
            text = value.value if isinstance(value, ast.Subscript) else value
            text = assigned.get(ast.unparse(text), text)
            if isinstance(text, ast.Constant | ast.JoinedStr) and readable(text).startswith("outbox "):
                yield readable(text)


def readable(value: ast.expr) -> str:
    """A name as a reader sees it; what is known only at run time is an ellipsis."""
    if isinstance(value, ast.Constant):
        return str(value.value)
    if isinstance(value, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in value.values)  # type: ignore[misc]
    return ast.unparse(value).rpartition(".")[2]


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "packages": packages_drawing,
    "tables": tables_drawing,
    "threads": threads_table,
}


def drawn(text: str) -> str:
    """The page with all its parts made again from the sources."""
    for name, make in PARTS.items():
        begin, end = f"<!-- drawn: {name} -->\n", f"<!-- end: {name} -->"
        before, found, rest = text.partition(begin)
        if not found or end not in rest:
            raise ValueError(f"{PAGE.name} has no place for {name}: write {begin.strip()} and {end} into it")
        text = before + begin + "\n".join(make()) + "\n" + end + rest.partition(end)[2]
    return text


def main() -> None:
    """Print the parts, or write them into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="bring docs/concepts/architecture.md up to date")
    if parser.parse_args().write:
        PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    for make in PARTS.values():
        sys.stdout.writelines(f"{line}\n" for line in [*make(), ""])


if __name__ == "__main__":
    main()
