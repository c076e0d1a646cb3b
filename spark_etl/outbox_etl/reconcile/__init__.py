"""Reconcile: PostgreSQL, Kafka and the warehouse compared, window by window."""
