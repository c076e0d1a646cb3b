"""The part of a session that moves topics to their changed partition counts; see topic_changes.py for the rules."""

from __future__ import annotations

from outbox_relay.publisher.errors import DeliveryError
from outbox_relay.publisher.lease import Lease
from outbox_relay.publisher.producing import Publisher
from outbox_relay.publisher.shared_lanes import Shares


class MovedTopics:
    """Follows the registry of topics, and uses what has changed of it."""

    _publisher: Publisher
    _lease: Lease
    _shares: Shares

    def _move_topics(self) -> bool:
        """Use changed topics once nothing of them is on the wire; return whether this turn may go on.

        Raises:
            DeliveryError: a topic may not be published to before its change is used, and that takes long: its messages
                on the wire wait for a partition that acknowledges nothing, or its producer does not list all of its
                partitions. A new producer begins with what is recorded.
        """
        topics, publisher = self._publisher.topics, self._publisher
        if not topics.changes:
            return True
        topics.use_changes()
        if topics.changes.held_up(publisher.topics_aside()):
            if not self._settle():
                return False
            topics.use_changes()
        if stuck := topics.changes.stuck(publisher.topics_aside()):
            raise DeliveryError(
                f"topics {sorted(stuck)} have other partition counts now, and what is on the wire keeps this producer "
                "from using them: it is published again",
                {},
            )
        return True

    def _follow_topics(self) -> None:
        """Let the topics be read again when the registry has changed, and state by which change they are published."""
        topics = self._publisher.topics
        topics.expect(self._shares.generation)
        if topics.generation is not None:
            self._lease.topics_seen = topics.generation

    def _read_topics_anew(self) -> None:
        """Read the topics again before lanes that were just taken are published, if the registry has changed since."""
        self._publisher.topics.read_anew(self._shares.read_generation())

    def _settle(self, deadline: float | None = None) -> bool:
        raise NotImplementedError
