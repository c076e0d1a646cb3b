"""`outbox doctor` checks a whole deployment."""
