"""A group's workers: a bounded number of threads that ask, and what happens when a call does not return.

A thread that hangs in the application's code cannot be ended. Its half message counts as not answered, its answer, if
it ever comes, is thrown away, and another thread takes its place, so that the group's other half messages are asked
about. Each costs a thread, so there is a bound: 16, or four times the workers. When so many hang, nothing is asked
(`available` is 0) until one returns. The half message of a call that hangs is not asked about again here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from outbox.checking.answers import Answer, FailedAnswer, LocalTransactionState, answer_of, answer_of_error
from outbox.checking.asker import WHERE, Asker, NoCheckerError
from outbox.records import MessageView

MOST_HANGING = 16
HANGING_BY_WORKER = 4
"""How many calls may hang before nothing is asked any more: 16, or 4 for each worker where that is more."""
OVERTIME = 0.25
"""Seconds after the deadline in which an asker may still report itself that time is up."""


@dataclass(slots=True, eq=False)
class Task:
    """One half message that is to be asked about, and what came of it."""

    view: MessageView
    claim: str
    timeout: float
    """Seconds for the asking."""
    start_by: float
    """`time.monotonic()` after which it is not asked about any more: the lease would not last."""
    deadline: float = field(default=0.0, init=False)
    answer: Answer | None = field(default=None, init=False)
    seconds: float = field(default=0.0, init=False)
    """How long the answer took."""
    missing: str | None = field(default=None, init=False)
    """Why no listener can be asked."""
    hangs: bool = field(default=False, init=False)
    """It was not asked, because the call made for an earlier check has not returned yet."""
    abandoned: bool = field(default=False, init=False)
    """Its call has not returned in time, and what it returns is ignored."""

    @property
    def failed(self) -> str | None:
        """Why asking failed, if it did."""
        return self.answer.remark or "failed" if isinstance(self.answer, FailedAnswer) else None


class Workers:
    """Threads that take tasks and answer them; made when there is work, and kept.

    One thread submits and collects; the workers only ask.
    """

    def __init__(self, name: str, asker: Asker, wake: Callable[[], None]) -> None:
        """Ask with `asker`; `wake` is called by a worker when all tasks are answered."""
        self._name, self._asker, self._wake = name, asker, wake
        self._size = 1
        self._state = threading.Condition()
        self._waiting: deque[Task] = deque()
        self._running: set[Task] = set()
        self._answered: list[Task] = []
        self._hanging: dict[int, Task] = {}
        self._threads = 0
        """All that exist, those that hang included."""
        self._stopped = False

    @property
    def in_flight(self) -> int:
        """Tasks that wait, are being asked about, or have been answered and not collected."""
        with self._state:
            return len(self._waiting) + len(self._running) + len(self._answered)

    @property
    def hanging(self) -> int:
        """Threads whose call has not returned in time."""
        with self._state:
            return len(self._hanging)

    def hanging_since(self, seconds: float) -> list[int]:
        """The half messages whose call is overdue by so many seconds, by their ids."""
        before = time.monotonic() - seconds
        with self._state:
            return sorted(id for id, task in self._hanging.items() if task.deadline <= before)

    @property
    def available(self) -> int:
        """Threads that can ask, or that may still be made."""
        with self._state:
            return self._available()

    def resize(self, size: int) -> None:
        """Ask with at most `size` threads at once."""
        with self._state:
            self._size = size

    def submit(self, tasks: Iterable[Task]) -> None:
        """Have tasks answered.

        A half message whose earlier call still hangs is not asked about again: it would take a second thread. Its
        task comes back unanswered.
        """
        with self._state:
            for task in tasks:
                if task.view.id in self._hanging:
                    task.hangs = True
                    self._answered.append(task)
                else:
                    self._waiting.append(task)
            self._make_threads()
            self._state.notify(len(self._waiting))

    def collect(self) -> list[Task]:
        """Take what is answered, and what will not be: calls past their deadline, tasks that waited too long."""
        now = time.monotonic()
        with self._state:
            for task in [task for task in self._running if now > task.deadline + OVERTIME]:
                task.abandoned, task.seconds = True, task.timeout
                task.answer = FailedAnswer(
                    LocalTransactionState.UNKNOWN, f"check time-out: no answer within {task.timeout:g} s"
                )
                self._running.remove(task)
                self._answered.append(task)
                self._hanging[task.view.id] = task
            while self._waiting and self._waiting[0].start_by < now:
                self._answered.append(self._waiting.popleft())
            self._make_threads()
            answered, self._answered = self._answered, []
        return answered

    def give_back(self) -> None:
        """Ask about nothing that still waits: it is collected without an answer."""
        with self._state:
            self._answered.extend(self._waiting)
            self._waiting.clear()

    def stop(self) -> None:
        """Ask nothing more; each thread ends when its call returns."""
        self.give_back()
        with self._state:
            self._stopped = True
            self._state.notify_all()

    def _available(self) -> int:
        most = max(MOST_HANGING, HANGING_BY_WORKER * self._size)
        return max(min(self._size, most - len(self._hanging)), 0)

    def _make_threads(self) -> None:
        wanted = min(self._available(), len(self._waiting) + len(self._running))
        while not self._stopped and self._threads - len(self._hanging) < wanted:
            self._threads += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while (task := self._take()) is not None:
            missing, answer = self._ask(task)
            with self._state:
                if task.abandoned:
                    del self._hanging[task.view.id]
                    continue
                self._running.remove(task)
                task.missing, task.answer = missing, answer
                task.seconds = time.monotonic() - task.deadline + task.timeout
                self._answered.append(task)
                ready = not self._waiting and not self._running
            if ready:
                self._wake()

    def _take(self) -> Task | None:
        """The next task, or None when this thread is not needed any more."""
        with self._state:
            while not self._stopped and self._threads - len(self._hanging) <= self._size:
                if self._waiting:
                    task = self._waiting.popleft()
                    now = time.monotonic()
                    if now <= task.start_by:
                        task.deadline = now + task.timeout
                        self._running.add(task)
                        return task
                    self._answered.append(task)
                else:
                    self._state.wait()
            self._threads -= 1
            return None

    def _ask(self, task: Task) -> tuple[str | None, Answer | None]:
        try:
            missing = self._asker.missing(task.view)
            if missing is not None:
                return missing, None
            answer = self._asker.ask(task.view, task.deadline)
            return None, answer_of(answer)
        except NoCheckerError as error:
            return str(error) or "no listener is registered", None
        except BaseException as error:  # noqa: BLE001  (whatever is raised, even SystemExit, ends no worker)
            return None, answer_of_error(WHERE, error)
