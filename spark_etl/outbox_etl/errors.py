"""What the job refuses, in words an operator can act on; everything else is a defect and keeps its traceback."""

from __future__ import annotations

HEAL = (
    "Nothing was changed. Restore the file from a backup, or give another --warehouse: its first run exports all "
    "that PostgreSQL holds"
)
"""How a user repairs a damaged file of the warehouse."""
READ_AGAIN = "outbox-etl: a change is not what it was"
"""Stands in the error of a merge that reads another change than the one that its statement was chosen for."""


class EtlError(Exception):
    """Something that a user can repair; nothing was made visible."""


class SettingsError(EtlError):
    """An option is missing or wrong."""


class SourceError(EtlError):
    """PostgreSQL cannot be read, or holds what the job does not know."""


class SparkError(EtlError):
    """Spark cannot go on: its executors or its Java are gone, or have no memory or disk left."""


class TargetError(EtlError):
    """The warehouse cannot be written, or holds something else."""


class DamagedError(TargetError):
    """A file of the warehouse is not what was written, or gone."""


class CatalogError(TargetError):
    """The catalog that keeps Iceberg's tables does not answer, or refuses."""


class OtherClusterError(EtlError):
    """The warehouse was filled from another history of xids: another cluster, or one before a fail-over."""


class ConcurrentRunError(TargetError):
    """Another run changed the warehouse in the meantime; this one changed nothing that counts."""
