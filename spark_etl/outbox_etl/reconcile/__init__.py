"""Reconcile: PostgreSQL, Kafka and the warehouse compared, window by window, and certificates of that."""
