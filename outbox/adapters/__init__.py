"""The outbox on the connections of other libraries than psycopg, in the transactions that those began.

Each module needs its library, and none is imported by `outbox` itself.
"""
