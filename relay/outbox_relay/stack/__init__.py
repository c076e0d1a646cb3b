"""A PostgreSQL and a Kafka broker on this machine: real servers for a first walk, the demo, the tests and the benchmarks.

From the outside in: `commands/stack.py` is the command line, `api.py` what Python code calls, `choice.py` which
servers are used and why, `supervisor.py` the process that owns them, `postgres.py` and `kafka.py` one server each.
"""
