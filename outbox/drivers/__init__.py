"""Drivers: the seam between the core and whatever speaks to PostgreSQL.

The core's plans (`outbox.statements.Plan`) yield one `Statement` after another and are sent its rows. A driver

1. refuses a connection that is not of its kind, and one that would commit each statement by itself;
2. runs each statement on the caller's connection, in the caller's transaction, prepared where that is possible,
   binding str as untyped text, bytes as bytea, `ByteaArray` and `TextArray` as bytea[] and text[];
3. sends back all rows as plain tuples, with int for bigint, `uuid.UUID` for uuid and bytes for bytea, whatever row
   factories or adapters the caller's connection carries;
4. throws errors into the plan, with `errors.add_migration_hint` where the schema is missing. A plan lets them pass
   unchanged, unless it set a savepoint and asked for what the database may refuse.

An adapter for something that has such a connection inside (SQLAlchemy, Django) unwraps it and calls `run` here.
Statements use $1, PostgreSQL's own.
"""
