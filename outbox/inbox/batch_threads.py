"""The thread that runs a batch listener: takes messages, tries them together, and singles out those that fail.

A message that is alone is handled by `DeliveryThread`, so parking, time-outs and servers that are away are the same as
for single messages. A batch that is interrupted is tried again as it is, and counts no attempt.

A listener that runs past its time-out is given up with its thread, and the thread that takes its place runs each
message of the batch alone: which one made it hang is not known, and the next one that hangs is. So a message that hangs
takes two threads at most, however large its batch was.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from outbox.drivers.psycopg_sync import run
from outbox.inbox import membership
from outbox.inbox.assignments import Assignments
from outbox.inbox.batches import Batching, BatchOutcome, handle_batch
from outbox.inbox.failures import Failure, LockedError, UnconnectedError, is_infrastructure
from outbox.inbox.handling import ListenerFailedError
from outbox.inbox.messages import Attempt
from outbox.inbox.rounds import Round, Rounds
from outbox.inbox.sessions import locked_by_others
from outbox.inbox.threads import IDLE, MOST_INTERRUPTIONS, DeliveryThread, Runtime
from outbox.inbox.work import Work

log = logging.getLogger("outbox.inbox")


class BatchThread(DeliveryThread):
    """Runs messages as they are delivered, many at a time."""

    def __init__(self, name: str, runtime: Runtime, work: Assignments, batching: Batching) -> None:
        super().__init__(name, runtime, work)
        self._batching = batching
        self._rounds: Rounds[Work] = Rounds()

    def take_over(self, lost: DeliveryThread, failure: Failure | None) -> None:
        """Begin with what another thread left; each message alone."""
        if isinstance(lost, BatchThread):
            for work in lost._rounds.unfinished():
                # Which message of a batch made it hang is not known; one that was alone did. Copies: the thread that
                # was given up may still write into its own.
                cause = failure if work is lost.current else None
                self._rounds.add_alone([replace(work, failure=work.failure or cause)])

    def run_once(self) -> None:
        """Finish what is left of a batch, then take the next one."""
        while not self.given_up and (begun := self._rounds.next()):
            self._end_others(begun)
            if len(begun.items) == 1:
                [self.current] = begun.items
                self._work_on(self.current)
            elif begun.items:
                self._try_together(begun)
        if not self.given_up and self._is_connected():
            taken = self._work.take_batch(self._batching.most, self._batching.linger, IDLE)
            works = [Work.of(*each) for each in taken]
            self._rounds = Rounds([work for work in works if not self._is_alone(work)])
            self._rounds.add_alone(work for work in works if self._is_alone(work))

    def _return(self, work: Work) -> None:
        for each in self._rounds.unfinished():
            self._work.give_back(each.key, each.left())
        self._rounds, self.current = Rounds(), None

    def _end_others(self, begun: Round[Work]) -> None:
        """End messages whose partitions were given away, and all of them at the end of the member."""
        works, begun.items = begun.items, []
        for work in works:
            if not self._ends.is_set() and self._work.is_current(work.delivery):
                begun.items.append(work)
            else:
                self._work.finish(work.key, work.delivery, done=False)

    def _try_together(self, begun: Round[Work]) -> None:
        """Try messages in one transaction, and note what is to be run next."""
        while works := begun.items:
            try:
                outcome = self._try_once(works)
                self._pauses.reset()
            except ListenerFailedError as failed:
                if self._settle():
                    log.info(
                        "%d messages failed together, and each half of them is run: %s", len(works), failed
                    )
                    self._rounds.add_split(works, is_rest=begun.is_rest)
                return
            except LockedError as error:
                # Which one is locked is not known: each comes again, alone.
                if self._settle():
                    for work in works:
                        self._postpone(work, error)
                return
            except UnconnectedError as error:
                if self._settle():
                    self._return(works[0])
                    self._pause_unconnected(error)
                return
            except Exception as error:
                if not self._settle():
                    return
                for work in works:
                    work.interruptions += 1
                interruptions = max(work.interruptions for work in works)
                if not is_infrastructure(error) and self._conn is not None:
                    # Something of one of them cannot be stored. It keeps its thread busy when it is alone, as it would
                    # without batches, so the others go first.
                    log.exception("the inbox cannot take %d messages together", len(works))
                    self._drop_connection()
                    self._rounds.add_split(works, is_rest=begun.is_rest)
                elif interruptions < MOST_INTERRUPTIONS or self._ends.is_set() or not self._is_up():
                    self._pause(error)
                    self._end_others(begun)
                    continue
                else:
                    for work in works:
                        work.interruptions = 0
                    self._rounds.add_alone(works)
                return
            if self._settle():
                self._note(works, outcome, is_rest=begun.is_rest)
            return

    def _try_once(self, works: list[Work]) -> BatchOutcome:
        conn = self._connected()
        if not all(self._work.is_current(work.delivery) for work in works):
            # The connection may be new, and lead to a server that lacks earlier messages.
            return BatchOutcome(again=list(range(len(works))))
        for day in sorted({work.delivery.born_on for work in works} - self._server.days):
            with locked_by_others():
                run(conn, membership.ensure_partition(str(day)))
            conn.commit()
            self._server.days.add(day)

        def begins(attempt: Attempt, places: list[int]) -> None:
            for place in places:
                works[place].attempt = attempt
            self._begin(works[places[0]].delivery, conn)

        deliveries = [work.delivery for work in works]
        return handle_batch(conn, self._how.group, self._batching.listener, deliveries, begins)

    def _note(self, works: list[Work], outcome: BatchOutcome, *, is_rest: bool) -> None:
        """Finish what is done, and note what is to be run next."""
        # One that was tried before may have been committed by the listener itself, which is checked when it is alone.
        tried = [place for place in outcome.refused if works[place].attempt is not None]
        refused = [place for place in outcome.refused if place not in tried]
        counts = self._how.counts
        counts.message("applied", outcome.applied)
        counts.message("discarded", len(outcome.done) - outcome.applied)
        counts.message("refused", len(refused))
        for place in [*outcome.done, *refused]:
            self._work.finish(works[place].key, works[place].delivery)
        self._rounds.add_alone(works[place] for place in [*outcome.alone, *tried])
        for place, failure in outcome.failed.items():
            works[place].failure = failure
            self._rounds.add_alone([works[place]])
        again = [works[place] for place in outcome.again]
        if outcome.failed or outcome.done:
            self._rounds.add_rest(again, is_rest=is_rest)
        else:
            self._rounds.add_again(again, is_rest=is_rest)

    def _is_alone(self, work: Work) -> bool:
        is_counted = self._work.suspects.counts(work.delivery)
        return work.failure is not None or work.delivery.was_locked or is_counted
