"""What becomes of messages that fail in a session: Kafka refused them, or a drain was given up in front of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from outbox_relay.publisher.batch import Batch
from outbox_relay.publisher.errors import Refused, Unpublishable
from outbox_relay.publisher.lane_groups import Group, care_of
from outbox_relay.publisher.parked import Claim, Key, KeyDrain, ParkedKeys
from outbox_relay.publisher.producing import Publisher
from outbox_relay.publisher.recorder import Recorder
from outbox_relay.publisher.records import claim_of, claim_of_failure
from outbox_relay.publisher.waking import Waking
from outbox_relay.text.logs import Log

log = Log("relay")


class FailedMessages:
    """The part of a session that parks messages which failed, and keeps their keys and topics parked."""

    _publisher: Publisher
    _recorder: Recorder
    _parked: ParkedKeys
    _waking: Waking
    _groups: list[Group]
    _drain: KeyDrain | None = None
    """The key that is being drained: how far it was produced, in this session."""
    _ended: dict[int, Key]
    """The keys whose last page was produced and is not recorded, by their numbers."""
    _suspects: dict[int, int]
    """By number of a key: up to this position its messages are drained one at a time, because Kafka refused one."""

    def _note_failed(self, drain: KeyDrain, failed: Claim) -> None:
        """Note that a key, or a topic, stays parked; a topic is asked about again, later each time."""
        assert failed.head is not None  # noqa: S101  (claim_of gives it)
        if drain.is_topic:
            self._waking.fail(drain.key[1], drain.number)
        what = "topic" if drain.is_topic else "key"
        log.error(f"{what} stays parked", message_id=failed.message_id, reason=failed.head.error)

    def _note_claims(self, claims: Iterable[Claim]) -> None:
        """Log which keys and topics claims park."""
        for claim in claims:
            if claim.head is not None:
                log.error(
                    f"{claim.what} parked",
                    lane=claim.lane,
                    message_id=claim.message_id,
                    reason=claim.head.error,
                )

    def _park_refused(self, refused: Mapping[int, Refused]) -> dict[int, Refused]:
        """Park the keys of messages that Kafka refused while they were alone on the wire; return the other refusals.

        The producer is closed, what was acknowledged is recorded, and what was not is in doubt.
        """
        left = {}
        careful = care_of(self._groups)
        drain = self._drain_of_refusal(refused)
        for lane, one in refused.items():
            code, _, text = one.reason.partition(": ")
            row = one.row
            alone = self._publisher.topics.skips_ahead(one.topic)
            claim = None if row is None else claim_of_failure(row, Unpublishable(code, text), alone=alone)
            if one.of_drain:
                if drain is not None and claim is not None and drain.takes(claim):
                    self._recorder.claim(self._parked.held.behind(claim))
                elif drain is not None and claim is not None and drain.waits_for(claim):
                    # The request stays, for after the topic: see Publisher._put_off_drain.
                    if (lane, drain.key[1]) not in self._parked.held.topics:
                        self._recorder.claim(claim)
                elif drain is not None and row is not None:
                    failed = claim_of(row, drain.number, Unpublishable(code, text))
                    self._recorder.drained(replace(drain, done=(), is_all=False, failed=failed))
                    self._note_failed(drain, failed)
                elif drain is not None:
                    self._suspects[drain.number] = one.position
            elif claim is not None and lane in careful:
                claim = self._parked.held.within_limits(claim)
                self._recorder.claim(claim)
                log.error(f"{claim.what} parked", lane=lane, message_id=one.message_id, reason=one.reason)
            else:
                left[lane] = one
        return left

    def _fail_drain(self, batch: Batch, reason: Unpublishable, left: int) -> None:
        """Leave the key of a drain parked that was given up on the wire; what is certain of its page is recorded.

        Of a page of several messages nothing fails by itself: the drain begins again, one message at a time up to the
        one that waited. `left`: how many of them go on waiting.
        """
        part = batch.drain
        assert part is not None  # noqa: S101  (the caller has asked)
        held, topic = self._parked.held, part.key[1]
        claim = None if batch.alone is None else claim_of_failure(batch.alone, reason)
        if batch.alone is None:
            self._suspects[part.number] = max(batch.positions[index] for _, index in batch.waiting())
            self._parked.doubt_announced([part.lane])
        elif claim is not None and part.waits_for(claim):
            # The message is sound. The request stays, for after the topic: see Publisher._put_off_drain.
            self._parked.doubt_announced([part.lane])
            if claim.head is not None and (part.lane, topic) not in held.topics:
                held.park(claim.head.key, -claim.id)
                self._recorder.claim(claim)
        else:
            failed = claim_of(batch.alone, part.number, reason)
            self._recorder.drained(replace(part, done=(), is_all=False, failed=failed))
            log.error(f"{failed.what} stays parked", message_id=failed.message_id, reason=str(reason))
        if part.is_topic:
            self._waking.fail(topic, part.number)
        else:
            held.messages_of[part.lane, topic] += left
        self._ended.pop(part.number, None)
        if self._drain is not None and self._drain.number == part.number:
            self._drain = None

    def _drain_of_refusal(self, refused: Mapping[int, Refused]) -> KeyDrain | None:
        drains = [batch.drain for batch in self._publisher.unrecorded() if batch.drain is not None]
        lanes = [lane for lane, one in refused.items() if one.of_drain]
        return next((drain for drain in drains if drain.lane in lanes), None)
