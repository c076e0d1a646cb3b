"""The ways to ask a group's callback: over HTTP, and by a query."""
