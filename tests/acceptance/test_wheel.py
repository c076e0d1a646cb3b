"""The built wheel, installed as an application does it: in a clean environment, outside the checkout."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.features import ROOT
from tests.support.servers import MakeDatabase
from tests.support.wheel_environments import Environment

# Where each package lies in the checkout, by its name in the wheel.
PACKAGES = {
    "outbox": "outbox",
    "outbox_relay": "relay/outbox_relay",
    "outbox_local": "local/outbox_local",
    "outbox_migrations": "migrations/outbox_migrations",
    "outbox_etl": "spark_etl/outbox_etl",
}
# One worker builds and installs once for all of these.
pytestmark = pytest.mark.xdist_group("wheel")


@pytest.fixture(scope="session")
def service(wheel: Path, install: Callable[..., Environment]) -> Environment:
    """A host with every command: the wheel with the extra that brings all others."""
    return install(f"outbox-kafka[demo] @ {wheel.as_uri()}")


@pytest.fixture(scope="session")
def library(wheel: Path, install: Callable[..., Environment]) -> Environment:
    """A host that only sends: the wheel without extras, and psycopg's own binary."""
    return install(f"outbox-kafka @ {wheel.as_uri()}", "psycopg[binary]")


def test_wheel_holds_every_committed_file_of_the_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        f"{name}/{path.relative_to(ROOT / folder)}"
        for name, folder in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == expected
    assert {f"{name}/py.typed" for name in PACKAGES} <= packed
    assert any(name.startswith("outbox_migrations/") and name.endswith(".sql") for name in packed)


def test_host_gets_four_names_and_no_common_one(service: Environment) -> None:
    program = "import json, os, sysconfig; print(json.dumps(os.listdir(sysconfig.get_path('purelib'))))"
    names = set(json.loads(service.python(program)))
    assert set(PACKAGES) <= names
    assert names.isdisjoint(
        {"relay", "local", "migrations", "spark_etl", "tests", "bench", "docs", "requirements"}
    )


def test_host_may_have_its_own_relay_and_migrations(service: Environment) -> None:
    found = service.python(
        "import importlib.util as u; print([n for n in ('relay', 'migrations', 'tests') if u.find_spec(n)])"
    )
    assert found == "[]"


def test_command_tells_its_version_and_its_commands(service: Environment) -> None:
    version = service.run("outbox", "--version")
    assert (version.returncode, version.stderr) == (0, "")
    assert re.fullmatch(r"outbox, version \d+\.\d+\.\d+\S*\n", version.stdout)
    help_ = service.run("outbox", "--help")
    assert help_.returncode == 0
    assert "relay" in help_.stdout


def test_every_command_is_there(service: Environment) -> None:
    names = service.python("from outbox_relay.cli.main import LazyGroup; print(*LazyGroup.sources)").split()
    # In one process: each of them would begin with half a second of imports.
    helped = service.python(
        "from click.testing import CliRunner\n"
        "from outbox_relay.cli.main import main, LazyGroup\n"
        "for name in LazyGroup.sources:\n"
        "    ran = CliRunner().invoke(main, [name, '--help'])\n"
        "    assert (ran.exit_code, ran.exception) == (0, None), (name, ran.exception, ran.output)\n"
        "    print(name, ran.output.split()[:3] == ['Usage:', 'main', name])\n"
    )
    assert helped.split() == [word for name in names for word in (name, "True")]


def test_migrations_are_found_and_printed(service: Environment) -> None:
    printed = service.run("outbox", "db", "sql")
    assert printed.returncode == 0, printed.stderr
    assert "CREATE TABLE OUTBOX.MESSAGE" in printed.stdout.upper()


def test_migrations_are_found_and_run(service: Environment, make_private_database: MakeDatabase) -> None:
    dsn = make_private_database(migrated=False)
    upgraded = service.run("outbox", "db", "upgrade", OUTBOX_DSN=dsn)
    assert upgraded.returncode == 0, upgraded.stderr
    checked = service.run("outbox", "db", "check", OUTBOX_DSN=dsn)
    assert checked.returncode == 0, checked.stderr


def test_library_needs_psycopg_alone(library: Environment) -> None:
    names = library.python(
        "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions()))"
    )
    assert names.split() == ["outbox-kafka", "psycopg", "psycopg-binary", "typing_extensions"]
    assert library.python("import outbox; print(outbox.__name__)") == "outbox"


def test_command_without_its_extra_says_which_one_to_install(library: Environment) -> None:
    refused = library.run("outbox", "--help")
    assert refused.returncode == 1
    assert "pip install 'outbox-kafka[relay] @ file:///" in refused.stderr
    assert "Traceback" not in refused.stderr
