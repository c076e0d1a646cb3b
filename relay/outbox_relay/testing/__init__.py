"""Fixtures of pytest for tests of applications, and a relay that publishes what is there and ends.

`outbox.testing` has what works without Kafka and without pytest.
"""
