"""The job's process and its Java as one group: started, listened to, and ended whole."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from types import FrameType

GRACE = 10.0
"""Seconds that Java has to remove its temporary files, after a SIGTERM, before it is killed."""
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SignalReceived(BaseException):
    """A signal asks us to end; no error, like KeyboardInterrupt."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass(frozen=True, slots=True)
class Ended:
    """How the job ended: its exit code as a shell has it, and all that it wrote to standard output."""

    code: int
    output: str


def run(arguments: Sequence[str], environment: Mapping[str, str], hear: Callable[[str], None]) -> Ended:
    """Run the job with these arguments of `outbox_etl`; `hear` is given every line of its standard error.

    No argument is on a command line: they may hold passwords.

    Raises:
        SignalReceived: SIGTERM, SIGINT or SIGHUP came; the job and its Java are gone.
    """
    with _stops():
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "outbox_relay.warehouse.job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=dict(environment),
            start_new_session=True,  # a group of its own; and Ctrl-C at the terminal is ours to handle
        )
        try:
            return _listen(process, arguments, hear)
        except BaseException:
            _end(process)
            raise


def _listen(process: subprocess.Popen[str], arguments: Sequence[str], hear: Callable[[str], None]) -> Ended:
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    if stdin is None or stdout is None or stderr is None:
        raise AssertionError("all three are pipes")
    with contextlib.suppress(BrokenPipeError):
        stdin.write(f"{json.dumps(list(arguments))}\n")
        stdin.flush()  # and kept open: its end would be ours
    output: list[str] = []
    reader = threading.Thread(target=lambda: output.extend(stdout), daemon=True)
    reader.start()
    for line in stderr:  # its end is the end of Java too
        hear(line.rstrip("\n"))
    code = process.wait()
    reader.join()
    for pipe in (stdout, stderr):
        pipe.close()
    with contextlib.suppress(BrokenPipeError):
        stdin.close()
    return Ended(code if code >= 0 else 128 - code, "".join(output))


def _end(process: subprocess.Popen[str]) -> None:
    """End the job, its Java and its workers; answer when they are gone."""
    if process.returncode is None:
        limit = monotonic() + GRACE
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        # The group keeps its number while Java is in it.
        while monotonic() < limit and _signal(process.pid, 0):
            sleep(0.05)
        _signal(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with contextlib.suppress(OSError):
                pipe.close()


def _signal(group: int, number: int) -> bool:
    """Signal a group; tell whether there is one."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def _stops() -> Iterator[None]:
    """Turn the signals that ask us to end into an exception, once: the job's own end must not be interrupted.

    Signals come to the main thread. In another one they do nothing here: the job ends when this process does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        for each in STOPS:
            signal.signal(each, signal.SIG_IGN)
        raise SignalReceived(number)

    before = {each: signal.signal(each, stop) for each in STOPS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
