"""A PostgreSQL and a Kafka broker on this machine: real servers for first steps, the demo, tests and benchmarks.

From the outside in: `stack/commands.py` is the command line, `lifecycle.py` and `api.py` are what Python code calls,
`choice.py` decides which servers are used and why, `prepare.py` gets what they need, `supervisor.py` is the process
that owns them, `postgres.py` and `kafka.py` are one server each.
"""
