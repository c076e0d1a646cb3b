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
            DeliveryError: a topic may not be published to before its change is used, and its messages on the wire
                wait for a partition that acknowledges nothing: a new producer begins with what is recorded.
        """
        topics, publisher = self._publisher.topics, self._publisher
        if not topics.changes:
            return True
        topics.use_changes()
        if not topics.changes.held_up(publisher.topics_aside()):
            return self._require_none_aside()
        if not self._settle():
            return False
        topics.use_changes()
        return self._require_none_aside()

    def _require_none_aside(self) -> bool:
        aside = self._publisher.topics.changes.awaited & self._publisher.topics_aside()
        if aside:
            raise DeliveryError(
                f"topics {sorted(aside)} move their keys, and messages of them wait for a partition which acknowledges "
                "nothing: they are published again by the changed partition count",
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
