"""Looking at the outbox: what `outbox status` and `outbox message` ask and how they show it."""
