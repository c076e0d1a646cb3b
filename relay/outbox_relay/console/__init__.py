"""`outbox console`: pages about one database for a browser, live, with the acts of an operator."""
