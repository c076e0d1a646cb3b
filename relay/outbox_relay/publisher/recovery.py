"""How a session goes on after a failed delivery or an error of its own: from what is recorded."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import psycopg

from outbox_relay.database.connections import DatabaseUnreachableError
from outbox_relay.publisher.batch import Stop
from outbox_relay.publisher.errors import (
    BrokenError,
    DeliveryError,
    KafkaUnavailableError,
    Refused,
    Unpublishable,
)
from outbox_relay.publisher.kafka import KafkaSettingError
from outbox_relay.publisher.lane_groups import Group, by_progress
from outbox_relay.publisher.lease import LeaseLostError
from outbox_relay.publisher.recorder import Recorder
from outbox_relay.publisher.stops import Stops

BROKEN_PAUSE_LAST_S = 60.0
"""The longest pause after an error of the relay's own: each start over publishes again what was not recorded."""

# What PostgreSQL, Kafka and other relays do, and what the relay itself deals with.
_PASSED_ON = (
    DeliveryError, LeaseLostError, KafkaUnavailableError, KafkaSettingError, DatabaseUnreachableError, psycopg.Error,
)  # fmt: skip
_DEFECTS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


@contextmanager
def naming_defects() -> Iterator[None]:
    """Turn an error that no outside event explains into BrokenError, with the place where it was raised.

    Only while messages are published and recorded: ended there, the relay would be started again and would publish
    the same messages again, as fast as a supervisor can.
    """
    try:
        yield
    except _PASSED_ON:
        raise
    except _DEFECTS as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error)[:500]}"
        raise BrokenError(
            f"internal error in {frame.name} ({frame.filename}:{frame.lineno}): {text}", {}
        ) from error


def regroup(
    groups: Iterable[Group], stops: Stops, recorder: Recorder, refused: Mapping[int, Refused]
) -> list[Group]:
    """Put the lanes into groups that go on from what is recorded.

    A lane whose message was refused goes on carefully, by itself; if it went carefully already, it stops. A lane
    that had stopped and was being tried again begins with a trial.
    """
    recorded = recorder.recorded
    careful = {lane: g.careful for g in groups if g.careful is not None for lane in g.lanes}
    # A lane whose stop is not recorded went down with the producer, with messages in front of the one that it
    # stopped at. Reading on from what is recorded, it meets that message again.
    stops.keep_recorded(recorded)
    halted = set(stops.now())
    for lane, (position, message_id, reason, *_) in refused.items():
        if lane in careful:
            code, _, text = reason.partition(": ")
            stop = Stop(lane, recorded[lane], position, message_id, Unpublishable(code, text))
            recorder.stop(stop)
            stops.add(stop, careful=position)
            halted.add(lane)
        else:
            careful[lane] = position
    going = {lane: known for lane, known in recorded.items() if lane not in halted}
    plain = {lane: known for lane, known in going.items() if lane not in careful and lane not in stops}
    return [
        *by_progress(plain),
        *(
            Group({lane}, known, careful=careful.get(lane), trial=lane not in careful)
            for lane, known in going.items()
            if lane not in plain
        ),
    ]
