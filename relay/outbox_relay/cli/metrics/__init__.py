"""`outbox metrics` lists the metrics, and serves those of a database."""
