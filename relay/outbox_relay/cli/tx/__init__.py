"""`outbox tx` lists, explains and decides half messages."""
