"""Errors of Java and of this machine as the job reports them: what happened, and what a user can do; one line each."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from typing import Any

from outbox_etl.errors import (
    HEAL,
    READ_AGAIN,
    CatalogError,
    ConcurrentRunError,
    DamagedError,
    EtlError,
    SettingsError,
    SourceError,
    SparkError,
    TargetError,
)

SECRET = re.compile(r"(?i)(password=)[^&\s]+|(://[^:/@\s]+:)[^@\s]+@")
MOST_CAUSES = 20
"""Causes that are read; a chain of causes may end in itself."""

AGAIN = "No partial result is visible: run again"

# The first that is found counts: what happened to a file or to a machine comes before what Spark made of it.
KNOWN: tuple[tuple[str, type[EtlError], str], ...] = (
    (
        (
            r"(?s)(?:No space left on device|Disk quota exceeded).*?"
            r"at org\.apache\.spark\.(?:shuffle|storage|util\.collection)"
        ),
        SparkError,
        (
            "no space left in the directory that Spark uses besides memory: name a larger one with "
            f"--spark spark.local.dir=PATH. {AGAIN}"
        ),
    ),
    (
        r"No space left on device|Disk quota exceeded|File too large",
        TargetError,
        (
            "no space left in the warehouse{at}, or in Spark's directory (spark.local.dir): free some"
            f". {AGAIN}"
        ),
    ),
    (
        r"OutOfMemoryError: ([^\n]*)",
        SparkError,
        (
            "Java ran out of memory ({0}): give more with --driver-memory, on a cluster by "
            f"--spark spark.executor.memory=4g. {AGAIN}"
        ),
    ),
    (
        r"Checksum error: (\S+) at ",
        DamagedError,
        f"a file of the warehouse is damaged: {{0}} does not match its checksum. {HEAL}",
    ),
    (
        (
            r"(?:Failed to (?:fetch|read|open)(?: input stream for)? file:|"
            r"FAILED_READ_FILE\S* Encountered error while reading file) (\S+?)\.?(?:\s|$)"
        ),
        DamagedError,
        f"a file of the warehouse is damaged or missing: {{0}}. {HEAL}",
    ),
    (
        r"Metadata file for version (\d+) is missing under (\S+)",
        DamagedError,
        f"a file of the warehouse is missing: {{1}}/v{{0}}.metadata.json. {HEAL}",
    ),
    (
        r"(?:PATH_NOT_FOUND\] Path does not exist:|FileNotFoundException: File) (\S+?)\.?(?:\s|$)",
        DamagedError,
        f"a file of the warehouse is missing: {{0}}. {HEAL}",
    ),
    (
        r"(\S+) is not a Parquet file",
        DamagedError,
        f"a file of the warehouse is damaged: {{0}} is not a Parquet file. {HEAL}",
    ),
    (
        r"(?s)(?:UncheckedSQLException|jdbc\.JdbcCatalog).*?SQLException: ([^\n]*)",
        CatalogError,
        "the catalog's database: {0}. Check --catalog-uri, or --dsn where that is not given. Nothing was changed",
    ),
    (
        r"(?:HttpHostConnectException|UnknownHostException): ([^\n]*)",
        CatalogError,
        "the catalog does not respond: {0} (--catalog-uri is its URL). Nothing was changed",
    ),
    (
        (
            r"(?:NotAuthorizedException|ForbiddenException|RESTException|ServiceFailureException|"
            r"ServiceUnavailableException|BadRequestException): ([^\n]*)"
        ),
        CatalogError,
        "the catalog refuses: {0} (--catalog-uri, --catalog-option credential=… or token=…). Nothing was changed",
    ),
    (
        r"PSQLException: ERROR: outbox-etl: ([^\n]*)",
        SourceError,
        (
            "--dsn leads to several servers, or a standby was promoted meanwhile: {0}. Name one server, or a pooler "
            f"that leads to one; a standby has to keep up. {AGAIN}"
        ),
    ),
    (
        r"PSQLException: ([^\n]*)",
        SourceError,
        f"PostgreSQL: {{0}} (--dsn names it). {AGAIN}",
    ),
    (
        r'No (?:Abstract)?FileSystem (?:configured )?for scheme:? "?([^\s"]+)',
        SettingsError,
        (
            "Spark has no file system for {0}: --warehouse must be a path, file:, hdfs://, s3a://, abfss:// or gs:// "
            "with their jars in --jars"
        ),
    ),
    (
        r"Class (org\.apache\.hadoop\.\S+) not found",
        SettingsError,
        "the jar of the warehouse's file system is missing ({0} cannot be loaded): add it to --jars",
    ),
    (
        r"(?:Mkdirs failed to create|Parent path is not a directory:) (\S+)",
        TargetError,
        "{0} cannot be created. Give another --warehouse, or this user the right to write there",
    ),
    (
        r"(\S+) ?\((?:Permission denied|Read-only file system|Not a directory)\)",
        TargetError,
        "{0} cannot be written. Give another --warehouse, or this user the right to write there",
    ),
    (
        r"(?:AccessControlException|AccessDeniedException): ([^\n]*)",
        TargetError,
        "the warehouse cannot be written: {0}. Give another --warehouse, or this user the right to write there",
    ),
    (
        READ_AGAIN,
        SparkError,
        f"an executor was lost, and its messages have changed in PostgreSQL meanwhile. {AGAIN}",
    ),
    (
        (
            r"(?:ValidationException|CommitFailedException|"
            r"IllegalArgumentException(?=: (?:Cannot fast-forward|Ref does not exist: run_))): ([^\n]*)"
        ),
        ConcurrentRunError,
        f"another run changed the warehouse: {{0}}. {AGAIN}",
    ),
    (
        r"Could not parse Master URL: '?([^'\n]*)",
        SettingsError,
        "--master {0} is not a valid master: expected local[4], spark://host:7077, yarn or k8s://…",
    ),
    (
        r"(?:All masters are unresponsive|Failed to connect to master)([^\n]*)",
        SparkError,
        "Spark's master does not respond{0} (--master names it). Nothing was changed",
    ),
    (
        (
            r"(?:ExecutorLostFailure|Executor heartbeat timed out|Master removed our application|"
            r"Remote RPC client disassociated)([^\n]{0,200})"
        ),
        SparkError,
        (
            "Spark lost its executors{0}: they were killed, or had no memory left (--spark spark.executor.memory=4g). "
            f"{AGAIN}"
        ),
    ),
    (
        r"(?:IllegalArgumentException|NumberFormatException|AnalysisException): ([^\n]*\bspark\.[^\n]*)",
        SettingsError,
        "Spark refuses a setting: {0} (--spark NAME=VALUE)",
    ),
    (
        (
            r"Py4JNetworkError|Answer from Java side is empty|Error while (?:sending|receiving)|"
            r"trying to connect to the Java server|^Connection(?:Refused|Reset)Error"
        ),
        SparkError,
        f"Spark's Java ended during the run: it was killed, or had no memory left (--driver-memory). {AGAIN}",
    ),
)


def explained(error: BaseException, secrets: Collection[str] = (), *, warehouse: str = "") -> EtlError | None:
    """Return the error as one of the job's own, without secrets; None when it is a defect whose traceback is needed.

    Java does not name the disk that is full, so the `warehouse` is named where that is known.
    """
    if isinstance(error, EtlError):
        return error
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in {"pyspark", "py4j"}:
        return SettingsError(
            "pyspark is not installed here: pip install 'pyspark>=4.1.3,<4.2', or run the job by spark-submit"
        )
    text = masked("\n".join(_texts(error)), secrets)
    for pattern, kind, text_of in KNOWN:
        if found := re.search(pattern, text):
            groups = (" ".join((group or "").split()) for group in found.groups())
            return kind(text_of.format(*groups, at=f" ({masked(warehouse, secrets)})" if warehouse else ""))
    if isinstance(error, OSError) and error.filename:
        return TargetError(
            f"{error.filename}: {error.strerror}. Give another --warehouse, or repair that. {AGAIN}"
        )
    return None


def masked(text: str, secrets: Collection[str] = ()) -> str:
    """Remove passwords from a text: those that are known, and those in URLs."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return SECRET.sub(lambda found: f"{found[1] or found[2]}***" + ("@" if found[2] else ""), text)


def _texts(error: BaseException) -> Iterator[str]:
    """Yield the text of the error, and of its causes; Java's as `class: message`.

    The innermost is the precise one: Spark reports a commit that fails because of a damaged file as an aborted job.
    """
    # (Where Java itself is gone, what py4j reports of that is yielded already.)
    with contextlib.suppress(Exception):
        yield f"{type(error).__name__}: {error}"
    # pyspark has the Java error in `_origin`, py4j in `java_exception`.
    cause: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    with contextlib.suppress(Exception):
        for _ in range(MOST_CAUSES):
            if cause is None:
                return
            yield f"{cause.getClass().getName()}: {cause.getMessage()}"
            cause = cause.getCause()
