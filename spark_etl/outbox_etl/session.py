"""The Spark session: its jars, its catalog, and the settings that the job's results rest on."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outbox_etl.errors import SettingsError
from outbox_etl.options.dsn import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from outbox_etl.options.settings import Settings

CATALOG = "outbox"
NAMESPACE = "outbox"
DRIVER = "org.postgresql.Driver"
ICEBERG = "org.apache.iceberg.spark.SparkCatalog"
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
FIXED = {
    "spark.sql.session.timeZone": "UTC",
    # A value that does not fit is an error, never a null.
    "spark.sql.ansi.enabled": "true",
    # A JSON body with a name twice is JSON.
    "spark.sql.variant.allowDuplicateKeys": "true",
    # Nothing of the job is shown by a port of its own.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "true",
    # The reads of an export have a plan each, all alike: with numbers in the names of what is generated, each would be
    # compiled anew, and Java would find out for each what is worth optimizing.
    "spark.sql.codegen.useIdInClassName": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.log.level": "ERROR",
}
JAVA = (
    # Nobody waits for a pause, and the cores are PostgreSQL's too: the collector that takes least of them.
    "-XX:+UseParallelGC",
    # Java's second compiler took a third of a run's CPU, for code that ended before it had paid. It waits for a hundred
    # times as many calls and loops as by default: what rows go through still comes so far, the planning of queries not.
    "-XX:Tier4InvocationThreshold=500000",
    "-XX:Tier4MinInvocationThreshold=60000",
    "-XX:Tier4CompileThreshold=1500000",
    "-XX:Tier4BackEdgeThreshold=4000000",
    # (a Java without that compiler runs the job as well)
    "-XX:+IgnoreUnrecognizedVMOptions",
)
"""Options of the Java that does all the work under `local[…]`."""


def start(settings: Settings, *, app: str = "outbox-etl") -> SparkSession:
    """Start Spark, or take the session that spark-submit brought, and set up the catalog `outbox`.

    Raises:
        SettingsError: Java or a jar is missing.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415  (settings are checked before Spark is loaded)

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if java_program() is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        raise SettingsError(_why_not(None))
    builder = SparkSession.builder.appName(app)
    submitted = (
        "spark.master" in os.environ.get("PYSPARK_SUBMIT_ARGS", "") or "SPARK_ENV_LOADED" in os.environ
    )
    master = settings.master or ("" if submitted else "local[*]")
    chosen = dict(FIXED)
    if master:
        chosen["spark.master"] = master
    if master.startswith("local"):
        chosen["spark.driver.host"] = chosen["spark.driver.bindAddress"] = "127.0.0.1"
        chosen["spark.driver.memory"] = settings.driver_memory
        chosen["spark.driver.extraJavaOptions"] = " ".join(JAVA)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if settings.format == "iceberg":
        chosen["spark.sql.extensions"] = EXTENSIONS
    if settings.jars:
        chosen["spark.jars"] = ",".join(settings.jars)
    chosen |= settings.spark
    options = f"{chosen.get('spark.executor.extraJavaOptions', '')} -Duser.timezone=UTC"
    chosen["spark.executor.extraJavaOptions"] = options.strip()
    for name, value in chosen.items():
        builder = builder.config(name, value)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # (what it logs, it raises too)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        if type(error).__name__ != "PySparkRuntimeError" and not isinstance(error, FileNotFoundError):
            raise
        raise SettingsError(_why_not(error)) from error
    spark.sparkContext.setLogLevel("ERROR")
    jvm: Any = spark._jvm
    # Times of before 1900 come by the local mean time of Java's zone, whatever the session's zone is.
    jvm.java.util.TimeZone.setDefault(jvm.java.util.TimeZone.getTimeZone("UTC"))
    if "spark.sql.shuffle.partitions" not in settings.spark:
        # Spark's 200 cost a small window more than its rows; a shuffle on a cluster needs some per core.
        spark.conf.set("spark.sql.shuffle.partitions", max(4, 2 * spark.sparkContext.defaultParallelism))
    _need_class(spark, DRIVER, "postgresql")
    if settings.format == "iceberg":
        _need_class(spark, ICEBERG, "iceberg-spark-runtime")
        use_catalog(spark, settings)
    return spark


def _why_not(error: Exception | None) -> str:
    program = java_program()
    needs = "Spark needs Java 17 or 21: name one in JAVA_HOME, or use `outbox etl`, which downloads one"
    if program is None:
        home = os.environ.get("JAVA_HOME")
        return f"there is no Java {f'in JAVA_HOME, {home}' if home else 'on the PATH'}. {needs}"
    version = java_version(program)
    if version not in {"17", "21"}:
        return f"Spark does not start with Java {version} ({program}). {needs}"
    return (
        f"Spark does not start, though Java {version} is there ({program}): {error} "
        "Check --driver-memory and --spark; `python -m outbox_etl` shows the output of Java"
    )


def java_program() -> str | None:
    """The Java that Spark will take: $JAVA_HOME's, else the PATH's."""
    home = os.environ.get("JAVA_HOME", "")
    return shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")


def java_version(program: str) -> str:
    """Ask a Java for its main version: "17"."""
    try:
        done = subprocess.run(
            [program, "-version"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return "that does not run"
    found = re.search(r'version "(?:1\.)?(\d+)', done.stdout)
    return found[1] if found else "of no known version"


def _need_class(spark: SparkSession, name: str, artifact: str) -> None:
    try:
        jvm: Any = spark._jvm  # (the only way to ask)
        jvm.java.lang.Class.forName(name, True, jvm.java.lang.Thread.currentThread().getContextClassLoader())
    except Exception as error:
        if "ClassNotFoundException" not in str(error):
            raise
        raise SettingsError(
            f"the jar of {artifact} is missing ({name} cannot be loaded): name it in --jars or OUTBOX_ETL_JARS, "
            "or let `outbox etl` fetch it"
        ) from None


def use_catalog(spark: SparkSession, settings: Settings) -> None:
    """Set up the catalog after the start: what is given to the JVM's command line could be seen by all."""
    prefix = f"spark.sql.catalog.{CATALOG}"
    options = {"type": settings.catalog, "warehouse": settings.location, "cache-enabled": "false"}
    if settings.catalog == "rest":
        options |= {"uri": settings.catalog_uri, "warehouse": settings.warehouse}
    if settings.catalog == "jdbc":
        database = parse(settings.catalog_uri) if settings.catalog_uri else settings.source
        options |= {"uri": database.url, "jdbc.user": database.user, "jdbc.password": database.password}
        options |= {"jdbc.schema-version": "V1"}
    spark.conf.set(prefix, ICEBERG)
    for name, value in (options | dict(settings.catalog_options)).items():
        spark.conf.set(f"{prefix}.{name}", value)
