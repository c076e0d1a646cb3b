"""The hands of the publisher's core: what reads PostgreSQL, writes to it, and gives messages to Kafka."""
