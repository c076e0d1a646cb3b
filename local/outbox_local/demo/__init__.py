"""`outbox demo`: the flights of New York 2013 written, published, read, and proven complete and in order.

From the outside in: `demo/commands.py` is the command line and `performance.py` plays the piece on the servers of
`venue.py`. `flights.py` is the source; `producer.py` and `consumer.py` are processes of their own, `journal.py`
is what both write down. `proof.py` compares those journals with the source and nothing else; `figures.py`,
`chart.py`, `report.py` and `outcome.py` show how it went. With `--warehouse`, `warehouse.py` exports the history, and
`history.py` and `marts.py` check what can be read there, by the same source and the same journals.
"""
