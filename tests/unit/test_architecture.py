"""The house rules that a reader would otherwise have to remember: who may import whom, and what a file holds.

Each rule reads the sources and runs none of them. A failing rule names the file, the line and what to do.
"""

from __future__ import annotations

import ast
import itertools
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import rooms
from tests.support.sources import parse, walk

pytestmark = pytest.mark.xdist_group("sources")

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = "outbox"
SERVICE = "relay/outbox_relay"
LOCAL = "local/outbox_local"
MIGRATIONS = "migrations/outbox_migrations"
WAREHOUSE = "spark_etl/outbox_etl"
PYTHON = (LIBRARY, SERVICE, LOCAL, MIGRATIONS, WAREHOUSE, "tests", "bench", "requirements")
LONGEST = 400
LONGEST_TEST_NAME = 79
CODE = {".py", ".sql"}
STATEMENT = re.compile(
    r"""\s*(
        SELECT\s | select\s+(\d|\*|[\w.]+\() | select\s[^.]*\sfrom\s
        | insert\s+into\s | update\s+\S+\s+set\s | delete\s+from\s | with\s+(recursive\s+)?\w+\s+as\s*\(
        | INSERT\s+INTO\s | UPDATE\s+\S+\s+SET\s | DELETE\s+FROM\s | WITH\s+(RECURSIVE\s+)?\w+\s+AS\s*\(
    )""",
    re.VERBOSE,
)
# In two parts, so that this file does not name them.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("repo.maven.apache", "org"),
        ("repo1.maven", "org"),
        ("registry.npmjs", "org"),
        ("proxy.golang", "org"),
        ("registry-1.docker", "io"),
        ("files.conda", "io"),
    )
]


def report(faults: list[str]) -> None:
    """Fail with all faults, one to a line; pytest would cut a compared list short."""
    assert not faults, "\n" + "\n".join(faults)


def sources(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """The Python files below the folders, parsed, with their names from the top of the checkout."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), parse(path)


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every absolute import, once each."""
    yield from dict.fromkeys((line, module.partition(".")[0]) for line, module, _ in rooms.imports(tree))


def committed() -> Iterator[tuple[str, str]]:
    """Name and text of every committed text file; of every file where this is no git checkout."""
    for name in git_files() or present():
        path = ROOT / name
        if path.is_file():
            try:
                yield name, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def git_files() -> list[str]:
    """The names that git keeps; none in an unpacked archive or where there is no git."""
    if not shutil.which("git"):
        return []
    # The checkout may belong to another user than the tests'.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [name for name in listing.stdout.split("\0") if name]


def present() -> list[str]:
    """All files but those in hidden directories, for an unpacked archive."""
    paths = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [str(path) for path in paths if not any(part.startswith(".") for part in path.parts[:-1])]


def test_library_imports_psycopg_and_standard_library_only() -> None:
    allowed = {*sys.stdlib_module_names, "psycopg", LIBRARY}
    report(
        [
            f"{name}:{line} imports {module}: the library lives on psycopg and the standard library"
            for name, tree in sources(LIBRARY)
            for line, module in imports(tree)
            if module not in allowed | optional(name)
        ]
    )


OPTIONAL = {
    "outbox/adapters/django/": {"django"},
    "outbox/adapters/django/upgrading.py": {"outbox_migrations"},
    "outbox/adapters/fastapi.py": {"fastapi", "sqlalchemy"},
    "outbox/adapters/sqlalchemy.py": {"sqlalchemy"},
    "outbox/codecs/encryption.py": {"cryptography"},
    "outbox/codecs/master_keys.py": {"cryptography"},
    "outbox/codecs/schemas/": {"confluent_kafka", "referencing"},
    "outbox/drivers/asyncpg_async.py": {"asyncpg"},
    "outbox/inbox/clients.py": {"confluent_kafka"},
    "outbox/inbox/django.py": {"django"},
    "outbox/inbox/kafka_offsets.py": {"confluent_kafka"},
    "outbox/inbox/poller.py": {"confluent_kafka"},
    "outbox/inbox/sqlalchemy.py": {"sqlalchemy"},
    "outbox/opentelemetry.py": {"opentelemetry"},
}
"""The files and folders of the library that may import an optional dependency."""


def optional(name: str) -> set[str]:
    """What this file may import beside what all may."""
    return set().union(*(modules for place, modules in OPTIONAL.items() if name.startswith(place)))


def test_the_library_itself_imports_no_adapter() -> None:
    code = (
        "import sys, outbox, outbox.rocketmq, outbox.testing\n"
        "absent = {'outbox.adapters', 'sqlalchemy', 'django', 'asyncpg', 'fastapi', 'opentelemetry'}\n"
        "assert not absent & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_consumers_need_no_sqlalchemy_and_no_django() -> None:
    code = (
        "import sys, outbox.inbox\nassert not {'sqlalchemy', 'django', 'opentelemetry'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_only_who_consumes_imports_the_client_of_kafka() -> None:
    consuming = ("outbox.inbox.", "outbox.rocketmq.consumer.", "outbox.codecs.schemas.")
    others = [
        name
        for name in rooms.modules(ROOT / LIBRARY)
        # Django's migrations have names that are no identifiers.
        if not f"{name}.".startswith(consuming) and all(part.isidentifier() for part in name.split("."))
    ]
    assert len(others) > 50, "the modules were found"
    code = (
        f"import sys, {', '.join(others)}\n"
        "assert not {'confluent_kafka', 'outbox.inbox'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.feature("S-37")
@pytest.mark.parametrize("folder", [LIBRARY, MIGRATIONS, WAREHOUSE])
def test_nothing_below_the_service_imports_it(folder: str) -> None:
    report(
        [
            f"{name}:{line} imports outbox_relay: what both need belongs to outbox"
            for name, tree in sources(folder)
            for line, module in imports(tree)
            if module == "outbox_relay"
        ]
    )


SERVICES = {
    "publisher": ("publisher",),
    "checker": ("checker",),
    "retention": ("retention",),
    "alarms": ("alarms",),
}
"""What runs, and its packages in outbox_relay; the sender is the library."""


@pytest.mark.feature("S-37")
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_has_packages_of_its_own_and_imports_no_other_service(service: str) -> None:
    others = {f"outbox_relay.{room}" for name in SERVICES if name != service for room in SERVICES[name]}
    files = list(sources(*(f"{SERVICE}/{room}" for room in SERVICES[service])))
    assert files
    report(
        [
            f"{name}:{node.lineno} imports {node.module}: what both services need belongs beside them"
            for name, tree in files
            for node in walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            if ".".join(node.module.split(".")[:2]) in others
        ]
    )


def test_the_service_does_not_import_the_local_servers() -> None:
    # cli/main.py names the modules of `outbox up`, `down`, `env` and `demo` as texts and loads them on demand.
    report(
        [
            f"{name}:{line} imports outbox_local: move what both need to outbox_relay"
            for name, tree in sources(SERVICE)
            for line, module in imports(tree)
            if module == "outbox_local"
        ]
    )


def test_migrations_import_no_application_code() -> None:
    report(
        [
            f"{name}:{line} imports {module}: a migration means the same for ever, so copy what it needs"
            for name, tree in sources(MIGRATIONS)
            for line, module in imports(tree)
            if module == LIBRARY
        ]
    )


def test_the_warehouse_job_imports_nothing_of_ours() -> None:
    report(
        [
            f"{name}:{line} imports {module}: a cluster is given the job's package and nothing else"
            for name, tree in sources(WAREHOUSE)
            for line, module in imports(tree)
            if module in {LIBRARY, "outbox_migrations"}
        ]
    )


@pytest.mark.parametrize("package", [LIBRARY, SERVICE, LOCAL, MIGRATIONS, WAREHOUSE])
def test_no_files_import_each_other(package: str) -> None:
    report(
        [
            f"{', '.join(circle)} import each other: move what both need into a file of its own"
            for circle in rooms.picture(ROOT / package).circles
        ]
    )


def test_no_product_code_imports_tests_or_bench() -> None:
    report(
        [
            f"{name}:{line} imports {module}, which is not in the wheel"
            for name, tree in sources(LIBRARY, SERVICE, LOCAL, MIGRATIONS, WAREHOUSE)
            for line, module in imports(tree)
            if module in {"tests", "bench", "relay", "local", "migrations", "spark_etl"}
        ]
    )


def test_every_package_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[^\w-]", text)[0].replace("-", "_") for text in declared}
    names |= {name.removesuffix("_api") for name in names & {"opentelemetry_api"}}
    known = {
        *sys.stdlib_module_names,
        *names,
        LIBRARY,
        "outbox_relay",
        "outbox_local",
        "outbox_migrations",
        "outbox_etl",
    }
    report(
        [
            f"{name}:{line} imports {module}: declare it in pyproject.toml, it is here by accident"
            for name, tree in sources(LIBRARY, SERVICE, LOCAL, MIGRATIONS, WAREHOUSE)
            for line, module in imports(tree)
            if module not in known
        ]
    )


def test_every_module_says_what_it_is_about() -> None:
    faults = []
    for name, tree in sources(*PYTHON):
        paragraph = (ast.get_docstring(tree) or "").partition("\n\n")[0]
        if not re.match(r"\S+\s+\S+.*?[.:!?](\s|$)", paragraph, re.DOTALL):
            faults.append(f"{name}: begin with a docstring whose first sentence tells the file's one subject")
    report(faults)


def test_no_file_is_long() -> None:
    files = [path for folder in PYTHON for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    lengths = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in files if path.suffix in CODE
    }
    report(
        [
            f"{path.relative_to(ROOT)}: {lines} lines, at most {LONGEST}: which two subjects does it hold?"
            for path, lines in lengths.items()
            if lines > LONGEST
        ]
    )


def test_the_name_of_a_test_is_short() -> None:
    names = [
        (f"{name}:{node.lineno}", node.name)
        for name, tree in sources("tests")
        for node in walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    assert len(names) > 1000, "the tests were found"
    report(
        [
            f"{place} {name} has {len(name)} characters, at most {LONGEST_TEST_NAME}: name one rule"
            for place, name in names
            if len(name) > LONGEST_TEST_NAME
        ]
    )


def test_tests_do_not_sleep() -> None:
    faults = []
    for name, tree in sources("tests"):
        for node in walk(tree):
            match node:
                case ast.Attribute(value=ast.Name(id="time"), attr="sleep"):
                    sleeps = True
                case ast.ImportFrom(module="time", names=names):
                    sleeps = any(alias.name == "sleep" for alias in names)
                case _:
                    continue
            if sleeps:
                faults.append(f"{name}:{node.lineno} sleeps: use wait_until of tests.support.waiting")
    report(faults)


def test_statements_live_in_sql_files() -> None:
    faults = []
    for name, tree in sources(LIBRARY, SERVICE, LOCAL, WAREHOUSE):
        prose = {id(node.value) for node in walk(tree) if isinstance(node, ast.Expr)}
        faults += [
            f"{name}:{node.lineno} holds a statement: name and explain it in a .sql file"
            for node in walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
            if STATEMENT.match(node.value)
        ]
    report(faults)


@pytest.mark.parametrize(
    ("text", "is_statement"),
    [
        ("SELECT 1", True),
        ("\n  select id from outbox.message", True),
        ("select pg_current_snapshot()", True),
        ("update outbox.lane set epoch = 1", True),
        ("WITH due AS (SELECT 1)", True),
        ("Select a topic from the list.", False),
        ("select one with --topic", False),
        ("update the schema and set the role", False),
        ("with messages as they come", False),
        ("delete it", False),
    ],
)
def test_a_statement_is_told_from_prose(text: str, is_statement: bool) -> None:
    assert bool(STATEMENT.match(text)) is is_statement


def test_committed_files_name_no_place_of_a_machine() -> None:
    # A checkout right below the root, or in a home called /root, is too short a name to look for.
    places = [re.escape(f"{place}/") for place in (ROOT, Path.home()) if len(place.parts) > 2]
    pattern = re.compile("|".join([r"(?<![\w.}])/(home|Users)/[a-z][\w.-]*/", *places]))
    report(
        [
            f"{name}:{number} names a place of one machine: {found[0]}"
            for name, text in committed()
            for number, line in enumerate(text.splitlines(), 1)
            if (found := pattern.search(line))
        ]
    )


def test_committed_files_name_no_package_registry() -> None:
    report(
        [
            f"{name}:{number} names {host}: leave the choice of a registry to the machine's own settings"
            for name, text in committed()
            for number, line in enumerate(text.splitlines(), 1)
            for host in REGISTRIES
            if host in line
        ]
    )
