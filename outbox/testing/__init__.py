"""What a test of an application asks: which messages were sent, on the connection that sent them.

    def test_an_order_is_announced(conn):
        sent = SentMessages(conn)
        place_order(conn, 7)
        sent.assert_sent("orders", key="7", body={"state": "placed"}, tags=["placed"])

The table itself is read, in the test's own transaction: a test that rolls back at its end sees its messages, and leaves
none. Nothing is published. The user needs the right to read `outbox.message`, as its owner has.
"""

from outbox.testing.sent_messages import SentMessage, SentMessages

__all__ = ["SentMessage", "SentMessages"]
