"""What a test of an application asks: which messages were sent, and what becomes of them.

    def test_an_order_is_announced(conn):
        sent = SentMessages(conn)
        place_order(conn, 7)
        sent.assert_sent("orders", key="7", body={"state": "placed"}, tags=["placed"])
        sent.drain(lambda record: ship(conn, record.value))

The table itself is read, in the test's own transaction: a test that rolls back at its end sees its messages, and leaves
none. `drain` hands over what a relay would publish, and `ask` asks listeners as the checker does; both at once, in the
test's own thread, and without Kafka. `AsyncSentMessages` has the same methods, awaited.

The user needs the right to read `outbox.message` and `outbox.topic`, as their owner has. `outbox_relay.testing` has the
fixtures of pytest, and publishes to a real broker.
"""

from outbox.testing.async_sent_messages import AsyncSentMessages
from outbox.testing.messages import SentMessage
from outbox.testing.records import PublishedRecord
from outbox.testing.sent_messages import SentMessages

__all__ = ["AsyncSentMessages", "PublishedRecord", "SentMessage", "SentMessages"]
