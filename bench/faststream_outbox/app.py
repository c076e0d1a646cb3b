"""The relay to Kafka that faststream-outbox documents, as a program: `python -m bench.faststream_outbox.app`.

It is the page "Relay to a foreign broker" of its documentation with a publisher of `faststream.confluent`: a handler
returns what it was given, and the publisher's decorator sends that to Kafka. The key travels in a header of the row,
because its table has no column for one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from faststream import FastStream
from faststream.confluent import KafkaBroker, KafkaResponse
from faststream_outbox import OutboxBroker
from faststream_outbox.annotations import OutboxMessage
from sqlalchemy.ext.asyncio import create_async_engine

from bench.faststream_outbox.table import KEY, OUTBOX, url


def application(
    dsn: str, bootstrap_servers: str, topics: list[str], subscriber: dict[str, Any]
) -> FastStream:
    """Return the application: one subscriber for the queue of each topic, which is called like it."""
    # Its documentation: one connection to fetch and one for each worker, for each subscriber.
    engine = create_async_engine(
        url(dsn, "asyncpg"), pool_size=len(topics) * (1 + subscriber.get("max_workers", 1))
    )
    outbox = OutboxBroker(engine, outbox_table=OUTBOX, logger=None)
    kafka = KafkaBroker(bootstrap_servers, logger=None)
    for topic in topics:

        @kafka.publisher(topic)
        @outbox.subscriber(topic, **subscriber)
        async def relay(message: OutboxMessage) -> KafkaResponse:
            headers = dict(message.headers)
            return KafkaResponse(message.body, key=headers.pop(KEY).encode(), headers=headers)

    return FastStream(outbox, logger=None, on_startup=[kafka.connect])


if __name__ == "__main__":
    asyncio.run(application(**json.loads(sys.argv[1])).run())
