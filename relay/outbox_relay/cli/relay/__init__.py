"""`outbox relay` runs the relay, lists relays and drains them."""
