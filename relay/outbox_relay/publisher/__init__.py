"""`outbox relay run`: finds what became COMMITTED, publishes it in order and records it."""
