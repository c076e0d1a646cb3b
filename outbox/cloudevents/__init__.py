"""CloudEvents 1.0 in Kafka's binary mode: the headers that make a `Message` an event.

See `docs/how-to/cloudevents.md`.
"""

from outbox.cloudevents.attributes import event_headers

__all__ = ["event_headers"]
