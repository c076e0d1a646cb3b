"""Starts the warehouse job for `outbox etl`: its Java, its jars, its process; the job itself is outbox_etl."""
