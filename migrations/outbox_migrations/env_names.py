"""Names that the migration environment and its callers share."""

SCHEMA = "outbox"
VERSION_TABLE = "schema_version"
