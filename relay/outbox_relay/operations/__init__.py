"""What operators do about messages that cannot be published, and about the lanes that stopped at them."""
