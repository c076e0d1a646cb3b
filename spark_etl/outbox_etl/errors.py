"""What the job refuses, in words an operator can act on; everything else is a defect and keeps its traceback."""

from __future__ import annotations


class EtlError(Exception):
    """Something that a user can repair; nothing was made visible."""


class SettingsError(EtlError):
    """An option is missing or wrong."""


class SourceError(EtlError):
    """PostgreSQL cannot be read, or holds what the job does not know."""


class TargetError(EtlError):
    """The warehouse cannot be written, or holds something else."""


class OtherClusterError(EtlError):
    """The warehouse was filled from another history of xids: another cluster, or one before a fail-over."""


class ConcurrentRunError(TargetError):
    """Another run changed the warehouse in the meantime; this one changed nothing that counts."""
