"""`outbox dlq` finds dead letters of consumer groups, tries them again and discards them."""
