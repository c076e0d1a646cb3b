"""Servers and a demo on one machine: `outbox up`, `down`, `env` and `demo`. Nothing here is part of the service."""
