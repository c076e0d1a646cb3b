"""The relay as a service: reads, secures, publishes and records, and outlives its servers."""
