"""`outbox message` sends, finds, shows and cancels messages."""
