"""The `outbox` command: one folder for each of its commands, loaded when it is named; only this package prints."""
