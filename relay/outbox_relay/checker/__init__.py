"""`outbox checker run`: asks the producers of undecided half messages, over HTTP or by a query."""
