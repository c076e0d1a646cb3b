"""The outbox's database: connections, named statements, its schema, partitions made ahead."""
