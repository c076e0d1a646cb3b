"""Calls to other systems, each within a deadline; HTTP requests are signed and go to allowed addresses only."""
