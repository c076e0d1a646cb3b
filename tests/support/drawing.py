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
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.rooms import PACKAGES, ROOT

PAGE = ROOT / "docs" / "concepts" / "architecture.md"
PROCESSES = {
    "outbox/sql/checking.sql": "checker",
    "relay/outbox_relay/checker": "checker",
    "outbox/checking": "checker",
    "outbox": "application",
    "relay/outbox_relay/publisher": "relay",
    "relay/outbox_relay/retention": "retention",
    "relay/outbox_relay/warehouse": "warehouse",
    "spark_etl": "warehouse",
    "relay/outbox_relay/database": "upkeep",
    "relay/outbox_relay": "operator",
    "migrations": "database",
}
"""The process that runs the files below a path; the first match counts."""
TITLES = {
    "application": "your application (outbox)",
    "relay": "outbox relay run",
    "checker": "outbox checker run, or GroupChecker",
    "upkeep": "partitions made ahead, by relay and checker",
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


def process_of(path: Path) -> str | None:
    """The process that runs a file; None for what is no part of a running system."""
    name = path.relative_to(ROOT).as_posix()
    return next((process for part, process in PROCESSES.items() if name.startswith(part)), None)


def tables() -> list[str]:
    """The tables of the schema, in the order in which they are made."""
    found = []
    for path in sorted((ROOT / "migrations").rglob("*.sql")):
        found += TABLE.findall(path.read_text(encoding="utf-8"))
    return [name for name in dict.fromkeys(found) if name != "partition_lock"]


def accesses(kind: re.Pattern[str]) -> dict[str, set[str]]:
    """Per process, the tables that its statements write or read."""
    known = set(tables())
    found: dict[str, set[str]] = {name: set() for name in TITLES}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.sql")):
            text = re.sub(r"--.*", "", path.read_text(encoding="utf-8"))
            if process := process_of(path):
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
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.partition(".")[0])
                elif isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
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
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            process = process_of(path)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if process else ():
                if isinstance(node, ast.Call) and process:
                    called = ast.unparse(node.func).rpartition(".")[2]
                    threads[process] |= set(thread_names(called, node))
                    connections[process] |= set(connection_names(called, node))
    yield "| process | threads that it starts | connections by name |"
    yield "|---|---|---|"
    for process, title in TITLES.items():
        if threads[process] or connections[process]:
            cells = (threads[process], connections[process])
            text = " | ".join(", ".join(f"`{name}`" for name in sorted(cell)) or "–" for cell in cells)
            yield f"| {title} | {text} |"


def thread_names(called: str, node: ast.Call) -> Iterator[str]:
    """The name of the thread that a call starts: its `name`, else the function that it runs."""
    given = {each.arg: each.value for each in node.keywords if each.arg}
    if called == "Thread":
        value = given.get("name") or given.get("target")
        if value is not None and not isinstance(value, ast.Lambda | ast.Attribute):
            yield readable(value)
    elif called == "ThreadPoolExecutor" and "thread_name_prefix" in given:
        yield readable(given["thread_name_prefix"])
    elif called == "Task" and node.args:
        yield readable(node.args[0])


def connection_names(called: str, node: ast.Call) -> Iterator[str]:
    """The application name that a call to open a connection states."""
    if "connect" in called:
        for value in [*node.args, *(each.value for each in node.keywords)]:
            if isinstance(value, ast.Constant) and str(value.value).startswith("outbox "):
                yield str(value.value)


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
