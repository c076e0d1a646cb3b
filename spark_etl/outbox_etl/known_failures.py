"""What Java says when something is wrong around the job, and what that is in the job's words."""

from __future__ import annotations

from outbox_etl.errors import (
    CatalogError,
    ConcurrentRunError,
    DamagedError,
    EtlError,
    SettingsError,
    SourceError,
    SparkError,
    TargetError,
)

AGAIN = "Nothing half is visible: run again"
HEAL = (
    "Nothing was changed. Bring the file back from a backup, or give another --warehouse: its first run exports all "
    "that PostgreSQL holds"
)

# The first that is found counts: what happened to a file or to a machine comes before what Spark made of it.
KNOWN: tuple[tuple[str, type[EtlError], str], ...] = (
    (
        (
            r"(?s)(?:No space left on device|Disk quota exceeded).*?"
            r"at org\.apache\.spark\.(?:shuffle|storage|util\.collection)"
        ),
        SparkError,
        (
            "no space left where Spark puts what does not fit into memory: name a larger directory by "
            f"--spark spark.local.dir=PATH. {AGAIN}"
        ),
    ),
    (
        r"No space left on device|Disk quota exceeded|File too large",
        TargetError,
        (
            "no space left where the warehouse lies{at}, or where Spark works (spark.local.dir): make room"
            f". {AGAIN}"
        ),
    ),
    (
        r"OutOfMemoryError: ([^\n]*)",
        SparkError,
        (
            "Java has not enough memory ({0}): give more by --driver-memory, on a cluster by "
            f"--spark spark.executor.memory=4g. {AGAIN}"
        ),
    ),
    (
        r"Checksum error: (\S+) at ",
        DamagedError,
        f"a file of the warehouse is damaged: {{0}} does not fit its checksum. {HEAL}",
    ),
    (
        (
            r"(?:Failed to (?:fetch|read|open)(?: input stream for)? file:|"
            r"FAILED_READ_FILE\S* Encountered error while reading file) (\S+?)\.?(?:\s|$)"
        ),
        DamagedError,
        f"a file of the warehouse is damaged or gone: {{0}}. {HEAL}",
    ),
    (
        r"Metadata file for version (\d+) is missing under (\S+)",
        DamagedError,
        f"a file of the warehouse is gone: {{1}}/v{{0}}.metadata.json. {HEAL}",
    ),
    (
        r"(?:PATH_NOT_FOUND\] Path does not exist:|FileNotFoundException: File) (\S+?)\.?(?:\s|$)",
        DamagedError,
        f"a file of the warehouse is gone: {{0}}. {HEAL}",
    ),
    (
        r"(\S+) is not a Parquet file",
        DamagedError,
        f"a file of the warehouse is damaged: {{0}} is no Parquet file. {HEAL}",
    ),
    (
        r"(?s)(?:UncheckedSQLException|jdbc\.JdbcCatalog).*?SQLException: ([^\n]*)",
        CatalogError,
        "the catalog's database: {0} (--catalog-uri names it, else --dsn). Nothing was changed",
    ),
    (
        r"(?:HttpHostConnectException|UnknownHostException): ([^\n]*)",
        CatalogError,
        "the catalog does not answer: {0} (--catalog-uri is its URL). Nothing was changed",
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
        f"PostgreSQL: {{0}} (--dsn says where it is). {AGAIN}",
    ),
    (
        r'No (?:Abstract)?FileSystem (?:configured )?for scheme:? "?([^\s"]+)',
        SettingsError,
        (
            "no file system for {0}: --warehouse takes a path, file:, hdfs://, and s3a://, abfss:// or gs:// "
            "with their jars in --jars"
        ),
    ),
    (
        r"Class (org\.apache\.hadoop\.\S+) not found",
        SettingsError,
        "the jar of the warehouse's file system is not there ({0} cannot be loaded): add it to --jars",
    ),
    (
        r"(?:Mkdirs failed to create|Parent path is not a directory:) (\S+)",
        TargetError,
        "{0} cannot be made. Give another --warehouse, or this user the right to write there",
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
        r"(?:ValidationException|CommitFailedException): ([^\n]*)",
        ConcurrentRunError,
        f"another run changed the warehouse: {{0}}. {AGAIN}",
    ),
    (
        r"Could not parse Master URL: '?([^'\n]*)",
        SettingsError,
        "--master {0} is none that Spark knows: use local[4], spark://host:7077, yarn or k8s://…",
    ),
    (
        r"(?:All masters are unresponsive|Failed to connect to master)([^\n]*)",
        SparkError,
        "Spark's master does not answer{0} (--master says where it is). Nothing was changed",
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
        "Spark does not take a setting: {0} (--spark NAME=VALUE)",
    ),
    (
        (
            r"Py4JNetworkError|Answer from Java side is empty|Error while (?:sending|receiving)|"
            r"trying to connect to the Java server|^Connection(?:Refused|Reset)Error"
        ),
        SparkError,
        f"Spark's Java has ended in mid-run: it was killed, or had no memory left (--driver-memory). {AGAIN}",
    ),
)
