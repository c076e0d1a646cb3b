"""What a monitoring system reads from a running process: `/livez`, `/readyz` and `/metrics`.

No request reads PostgreSQL or Kafka: it returns what the process noted, and what a thread of its own read a while ago.
So a scrape, or a thousand of them, never slows the relay, and an outage of a server does not make a probe hang.
"""
