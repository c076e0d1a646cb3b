"""Random schedules of consumers: the core of `outbox.inbox`, two processes of a group, and a database in memory."""
