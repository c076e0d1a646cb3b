"""`outbox holds` lists what cannot be published, and what operators do about it."""
