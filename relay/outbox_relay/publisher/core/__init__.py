"""The publisher's core without I/O: streams, holds, reading and writes. Its driver is `loop.py`, with `hands/`.

The core opens no socket and reads no clock. It takes rows, acknowledgements, refusals, silence, requests and `now`, and
returns what to read, write and send. Files: `core.py` the loop's calls, `sources.py` what is read, `streams.py` what is
sent, `transactions.py` what is sent exactly once, `holds.py` what waits, `read_back.py` what Kafka has already,
`topics.py` partition counts, `memory.py` bounds, `values.py` what is exchanged.

Rules. The search of tests/support/core_search has a variant without each of them, and finds what breaks.

- R1 A row is routed only when PostgreSQL cannot forget it: `Core.add`, `Core._secure`, `Core.written`.
- R2 The rows of a key are in one stream; it is sent, and sent again, in order: `Streams.to_send`, `Core._reroute`.
- R3 A publication or a claim settles a row, and nothing else does; the floor passes settled rows only: `Sources.floor`.
- R4 A claim is written with or after the publications in front of it for its key: `Core.next_write`,
  `Streams.take_unsent`.
- R5 What waits leaves the table by its hold only, by position, and new rows wait behind it until its last page is out:
  `Holds.scope_of`, `Core._take`, `Holds.close`, `Holds.to_let_go`.
- R6 A hold is drained when its claims are written and no wider hold covers it: `Holds.to_announce`, `Holds.is_covered`.
- R7 The table announces a page of a hold before it is read: `Holds.announced`, `Holds.next_drain`.
- R8 A message is accused only when it was alone, and a doubt stays until an acknowledgement: `Core.refused`,
  `Streams.lost`, `Holds.claim`, `Core.is_clean`.
- R9 A partition count changes in a write, while nothing of its topic is sent or held by partition: `Core.is_moving`.
- R10 (exactly-once) A batch is sent after its intent is written, and committed behind all others. After any doubt the
  producers are replaced, and the group's offset decides; only then is a number used again: `Transactions`.
- R11 A message in doubt counts as published without being sent only if Kafka has it behind all in doubt of its key in
  front of it: `ReadBack.take`. What waits for a hold waits.
- Isolation: a topic fills its share of the memory only (`Memory.is_full`), a refusal costs its own topic
  (`Streams.to_send`), too many holds of a topic hold that topic (`Holds.own_scope`), and each hold has a pause of its
  own (`Holds.fail`).
"""

from outbox_relay.publisher.core.core import Core

__all__ = ["Core"]
