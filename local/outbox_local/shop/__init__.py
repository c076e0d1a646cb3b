"""`outbox shop`: RocketMQ's e-commerce example, run by real processes with failures switched on, and proven at its end.

An order that is paid reaches logistics, points and cart, each a consumer group of its own. `service.py` is the shop: a
FastAPI application whose `payments.py` charges an order between a half message and its confirmation. `consumers.py`
has the three groups. `failures.py` has the switches. `customers.py` orders and pays over HTTP and keeps a journal;
`play.py` starts all processes, starts again those that a failure kills, and takes the broker away. `proof.py` compares
journal, business tables and topic. `page.html` shows it live.
"""
