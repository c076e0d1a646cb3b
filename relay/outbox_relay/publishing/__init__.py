"""Publishes batches to Kafka in order, and records what was acknowledged."""
