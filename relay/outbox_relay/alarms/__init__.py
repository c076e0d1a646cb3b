"""Alarms that are pushed to a webhook: what raises and clears them, and their delivery."""
