"""A paused process does nothing more, whichever of its threads had work."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from tests.support.pausing import is_paused, pause
from tests.support.waiting import wait_until

ROUNDS = 200
ANSWERS = """
import os, signal, threading
def answer():
    while True:
        os.write(1, os.read(0, 1))
threading.Thread(target=answer, daemon=True).start()
while True:
    signal.pause()
"""

STRIKES = """
import os, threading, time
from tests.support.dying_relay import strike
def step():
    while True:
        strike("pauses before")
        os.write(1, b"x")
threading.Thread(target=step, daemon=True).start()
while True:
    time.sleep(0.0005)
"""


def test_no_thread_answers_once_its_process_is_paused() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ANSWERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x")
        assert process.stdout.read(1) == b"x"
        answered = 0
        for _ in range(ROUNDS):
            pause(process.pid)
            process.stdin.write(b"x")
            answered += bool(select.select([process.stdout], [], [], 0.002)[0])
            os.kill(process.pid, signal.SIGCONT)
            assert process.stdout.read(1) == b"x"
        process.kill()
    assert answered == 0


def test_a_step_that_pauses_its_process_does_not_go_on_itself() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", STRIKES], stdout=subprocess.PIPE, bufsize=0, env=environment
    ) as process:
        assert process.stdout is not None
        went_on = 0
        for _ in range(20):
            wait_until(lambda: is_paused(process.pid), "it is paused")
            went_on += bool(select.select([process.stdout], [], [], 0)[0])
            os.kill(process.pid, signal.SIGCONT)
            assert process.stdout.read(1) == b"x"
        process.kill()
    assert went_on == 0
