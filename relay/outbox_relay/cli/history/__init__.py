"""`outbox history` lists and drops what retention allows."""
