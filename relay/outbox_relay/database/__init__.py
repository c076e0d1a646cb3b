"""The database's side of operations: is it fit for the outbox, and are there partitions for the coming days."""
