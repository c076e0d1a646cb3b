"""`outbox config` shows which options a command would run with, and where each comes from."""
