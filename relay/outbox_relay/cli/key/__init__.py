"""`outbox key` lists, destroys, renews and rewraps the keys of encrypted bodies."""
