"""What stands in the way of a start: options, jars, Java, the package; one clear line, mostly before Java starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.export_runs import jars
from tests.support.outbox_command import outbox

pytestmark = pytest.mark.spark
Environment = dict[str, str]
SECRET = "s3cr3t-Pa55"
DSN = f"postgresql://etl:{SECRET}@127.0.0.1:1/none"
SMALL = ("--master", "local[1]", "--driver-memory", "512m")


def job(*arguments: str, code: int = 1, script: str = "", environment: Environment | None = None) -> str:
    """Run `python -m outbox_etl` and insist on its exit code, on no traceback and no secret; answer its last line."""
    done = subprocess.run(
        [sys.executable, *(("-c", script) if script else ("-m", "outbox_etl")), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OUTBOX_DSN": DSN, "OUTBOX_WAREHOUSE": "", **(environment or {})},
    )
    shown = done.stdout + done.stderr
    assert done.returncode == code, shown
    assert "Traceback" not in shown
    assert SECRET not in shown
    return done.stderr.splitlines()[-1]


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A place that must stay as it is: not there."""
    return str(tmp_path / "warehouse")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("rum",), ("rum", "backfill")),
        (("run", f"--pasword={SECRET}"), ("no such option: --pasword",)),
        (("run", "--warehose=/w"), ("--warehose", "did you mean --warehouse?")),
        (("run", SECRET), ("an argument too many",)),
        (("run", "--format=xml"), ("--format", "xml", "parquet")),
        (("run", "--partitions=many"), ("--partitions", "many")),
        (("reconcile", "--limits=3"), ("--limits", "did you mean --limit?")),
    ],
)
def test_an_option_that_is_not_known_is_named_with_the_nearest_one(
    given: tuple[str, ...], words: tuple[str, ...]
) -> None:
    line = job(*given, code=2)
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("given", "environment", "words"),
    [
        ((), {}, ("no warehouse given", "OUTBOX_WAREHOUSE")),
        (("--warehouse=w",), {"OUTBOX_DSN": ""}, ("no database given", "OUTBOX_DSN")),
        (
            ("--warehouse=w",),
            {"OUTBOX_ETL_FORMAT": "xml"},
            ("OUTBOX_ETL_FORMAT", "'xml'", "iceberg, parquet"),
        ),
        (("--warehouse=w",), {"OUTBOX_ETL_CATALOG": "hive"}, ("OUTBOX_ETL_CATALOG", "hadoop, jdbc, rest")),
        (("--warehouse=w", "--slice-rows=1"), {}, ("--slice-rows 1", "1000 to")),
        (("--warehouse=w", "--driver-memory=lots"), {}, ("--driver-memory 'lots'", "2g")),
        (("--warehouse=w", "--spark=spark.executor.memory=lots"), {}, ("spark.executor.memory=lots", "2g")),
        (("--warehouse=w", f"--catalog-option={SECRET}"), {}, ("--catalog-option", "NAME=VALUE")),
        (("--warehouse=w", "--catalog=rest"), {}, ("--catalog-uri", "URL")),
        (("--warehouse=w", f"--dsn=postgresql://e:{SECRET}@h:99999/d"), {}, ("port '99999'", "65535")),
        (("--warehouse=w", f"--dsn=host=h password='{SECRET}"), {}, ("--dsn is not a valid DSN",)),
    ],
)
def test_a_value_that_is_wrong_is_named_with_what_is_allowed(
    given: tuple[str, ...], environment: dict[str, str], words: tuple[str, ...]
) -> None:
    line = job("run", *given, environment=environment)
    assert all(word in line for word in words), line
    assert job("run", "--warehouse=w", code=2, environment={"OUTBOX_ETL_PARTITIONS": "many"}).endswith(
        "'many'"
    )


def test_the_command_names_the_nearest_option_too(place: str) -> None:
    for given, words in (
        (("etl", "rum"), ("Did you mean 'run'?",)),
        (("etl", "run", f"--pasword={SECRET}"), ("--pasword",)),
        (("etl", "run", "--warehose=/w"), ("--warehouse",)),
        (("etl", "run", "--warehouse", place, "--catalog", "hive"), ("hive", "jdbc", "rest")),
        (("etl", "run", "--warehouse", place, "--partitions", "many"), ("many", "--partitions")),
    ):
        ran = outbox(*given, OUTBOX_DSN=DSN)
        assert ran.code == 2
        assert all(word in ran.err for word in words), ran.err
        assert SECRET not in ran.out + ran.err


def test_a_jar_that_is_none_is_named_before_java_starts(place: str, tmp_path: Path) -> None:
    text = tmp_path / "text.jar"
    text.write_text("no jar")
    given = ("run", "--warehouse", place, "--jars")
    for jar, word in (
        (tmp_path / "none.jar", "is not a file"),
        (text, "is not a jar"),
        (tmp_path, "is not a file"),
    ):
        line = job(*given, f"{jars()[0]},{jar}", environment={"JAVA_HOME": "/nowhere"})
        assert str(jar) in line
        assert word in line


def test_without_a_java_or_with_an_old_one_it_says_which_one_is_needed(place: str, tmp_path: Path) -> None:
    given = ("run", "--warehouse", place, *SMALL)
    line = job(*given, environment={"JAVA_HOME": str(tmp_path / "none")})
    assert "no Java in JAVA_HOME" in line
    assert "17 or 21" in line
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text('#!/bin/sh\necho \'openjdk version "11.0.2"\' >&2\n[ "$1" = -version ] || exit 1\n')
    old.chmod(0o755)
    line = job(*given, environment={"JAVA_HOME": str(tmp_path)})
    assert "Java 11" in line
    assert "17 or 21" in line
    assert not Path(place).exists()


def test_without_pyspark_it_says_what_to_install(place: str) -> None:
    absent = "import sys; sys.modules['pyspark'] = None\nfrom outbox_etl.main import main; sys.exit(main())"
    assert "pip install 'pyspark>=4.1.3,<4.2'" in job("run", "--warehouse", place, script=absent)


def test_a_jar_that_is_absent_is_named(place: str) -> None:
    iceberg, driver = jars()
    given = ("run", "--warehouse", place, *SMALL)
    for jar, absent in ((driver, "iceberg-spark-runtime"), (iceberg, "postgresql")):
        line = job(*given, "--jars", jar)
        assert f"the jar of {absent} is missing" in line
        assert "--jars" in line
    assert not Path(place).exists()


def test_a_master_that_spark_does_not_know_is_named(place: str) -> None:
    given = ("run", "--warehouse", place, "--driver-memory", "512m", "--jars", ",".join(jars()))
    line = job(*given, "--master", "locale[2]")
    assert "--master locale[2]" in line
    assert "local[4]" in line
