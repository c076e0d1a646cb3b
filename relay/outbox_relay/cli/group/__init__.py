"""`outbox group` shows and changes producer groups."""
