"""Load: processes that write messages, and the consumer that waits for them."""
