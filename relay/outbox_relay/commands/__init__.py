"""The commands of `outbox`, one module per subject, imported only when named."""
