"""Lanes: who owns them, by lease, and how far each is published."""
