"""`outbox lane` lists stopped lanes and requests retries."""
