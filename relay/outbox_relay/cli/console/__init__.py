"""`outbox console` serves pages about one database."""
