"""The outboxes that are compared: how each drains, how late it is, what it leaves of business transactions."""
