"""The decisions of a consumer, without I/O: plain state that takes events and the time, and states what comes next.

    Partitions   what is assigned: its messages wait by key, run, and are done; which offsets may be stored
    Hands        what one thread has taken, and what becomes of it after each outcome
    Retries      which thread searches for retries, and what interrupted ones cost
    Waiting      partitions that were assigned and are not read yet
    Contact      whether Kafka knows the member

Threads call these under the one lock of `Assignments`, or own them alone. `python -m tests.support.inbox_search` drives
this very code through random schedules.
"""
