"""`outbox checker run`: asks the producers of half messages that nobody decided, over HTTP or by a query."""
