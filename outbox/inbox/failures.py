"""What went wrong with a message: described in a few words, grouped, and kept apart from servers that are away."""

from __future__ import annotations

import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

KILLED = "its process ended while the listener ran, time after time"
_LONGEST = 8000
_LONGEST_SUMMARY = 200
_VARYING = re.compile(
    r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|'[^']*'|\"[^\"]*\"|\d+"
)
_LIBRARIES = (str(Path(__file__).parent.parent), "site-packages", "dist-packages", sys.base_prefix)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a listener did not apply a message."""

    fingerprint: str
    """The same for failures of one cause: exception, place in the application's code, text without numbers."""
    error: str
    kind: type[BaseException] = BaseException
    """The class of the listener's exception, if it raised one."""
    pause: float | None = None
    """Seconds until the next try, if the listener has chosen them."""
    is_final: bool = False
    """Whether another try is of no use: the message is dead."""


class InterruptedListenerError(Exception):
    """A listener was interrupted because its member ends, or its event loop has failed; its message is not to blame."""


class LockedError(Exception):
    """Another session has the row or the key of a message locked for longer than a shared thread may wait for it."""


class UnconnectedError(Exception):
    """A thread has no connection to PostgreSQL and cannot make one now; others may have theirs. The cause is why."""


def describe(error: BaseException) -> Failure:
    """Describe an exception of a listener."""
    place = _place(error.__traceback__)
    text = _VARYING.sub("?", str(error))[:_LONGEST_SUMMARY]
    kind = type(error).__qualname__
    full = "".join(traceback.format_exception(error))
    if len(full) > _LONGEST:
        full = f"{full[: _LONGEST // 2]}\n[…]\n{full[-_LONGEST // 2 :]}"
    return Failure(_clean(f"{kind} at {place}: {text}"), _clean(full), type(error))


def reported(summary: str, *, pause: float | None = None, is_final: bool = False) -> Failure:
    """Describe a failure that is not an exception."""
    return Failure(_clean(summary), _clean(summary), pause=pause, is_final=is_final)


def timed_out(seconds: float) -> Failure:
    """Describe a listener that was given up."""
    return reported(f"the listener ran past its time-out of {seconds:g} s")


def interrupted(error: Exception, times: int) -> Failure:
    """Describe a message during which PostgreSQL went away again and again, though it is up."""
    text = " ".join(str(error).split())[:300]
    return reported(f"PostgreSQL ended {times} transactions of this message in a row: {text}")


def killed(runs: int) -> Failure:
    """Describe a message of which so many counted runs did not end, because their processes ended.

    What ended them is not known: the message, another one that ran at that time, or something from outside.
    """
    return Failure(
        KILLED,
        f"{KILLED}: {runs} runs were counted that neither succeeded nor failed. The message may be to blame (out of "
        "memory, a crash, an exit), or something else that ended the process",
        is_final=True,
    )


def _place(trace: TracebackType | None) -> str:
    """Module and function of the innermost frame in the application's own code, without a line: it changes."""
    found = "unknown"
    while trace is not None:
        code = trace.tb_frame.f_code
        if not any(part in code.co_filename for part in _LIBRARIES):
            found = f"{trace.tb_frame.f_globals.get('__name__', '?')}:{code.co_qualname}"
        trace = trace.tb_next
    return found


def _clean(text: str) -> str:
    """Leave out what PostgreSQL's texts cannot hold: NUL, and surrogates without a partner."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
