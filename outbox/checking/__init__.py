"""Check-back: asks about undecided half messages until each is decided or left to an operator.

What is here, from the outside in:

- `GroupChecker(connect, group, asker)` runs in the producer's own process for its own group: `start()`, `stop()`,
  `run_once()`. It owns one connection and one thread, and the group's workers.
- `GroupRound(group, asker)` is one group's checker without a thread or a connection of its own, for a process that
  serves many groups. `step(connection)` does what is due and returns soon: it settles the replies that have come,
  scans a page of the group's half messages, claims those that are due and hands them to the group's workers.
  `connection` is called at most once per step, only when there is something for the database, and returns a context
  manager that yields an idle `psycopg.Connection` at READ COMMITTED (`pool.connection`); none is held while anything
  is asked. It returns a `Step`: what was done, and for how many seconds nothing more is due. `wake` (an argument of
  `GroupRound`) is called, from any thread, when replies are ready sooner. `run_once(connection)` does all that is due
  now and waits for the replies. With `asker=None` no listener is asked and no check is used up: half messages are
  only found and expired, and alarm `no_checker` reports overdue ones.
- `Asker` is what asks: `missing(view)` returns why no listener can be asked, `ask(view, deadline)` an `Answer`, or a
  `FailedAnswer` (UNKNOWN as well) where asking itself failed: failures in a row open the group's circuit breaker.
  `ListenerAsker` asks the listeners of this process. A call that does not return cannot be ended: its check is used up,
  another thread takes its place, and this process does not ask about its half message again until it returns.
  From 16 such calls on (or 4 for each worker of the group) nothing is asked any more; alarm `failing` names them.
- The plans `groups`, `settings`, `enqueue`, `claim`, `settle`, `expire`, `raise_alarm` and `clear_alarm`: one short
  transaction each, without I/O of their own, run by `outbox.checking.transaction`.

Every time is the database's. Only the standard library and psycopg are needed.
"""

from outbox.checking.answers import Answer, FailedAnswer, LocalTransactionState
from outbox.checking.asker import Asker, ListenerAsker, NoCheckerError
from outbox.checking.group_checker import GroupChecker
from outbox.checking.listeners import Listeners
from outbox.checking.rounds import GroupRound, Step
from outbox.records import MessageView

__all__ = [
    "Answer",
    "Asker",
    "FailedAnswer",
    "GroupChecker",
    "GroupRound",
    "ListenerAsker",
    "Listeners",
    "LocalTransactionState",
    "MessageView",
    "NoCheckerError",
    "Step",
]
