"""A consumer as a process of its own, watched through the lines that it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.support.inbox_stage import InboxStage
from tests.support.pausing import pause
from tests.support.waiting import wait_until

ENTRY = Path(__file__).with_name("consumer_entry.py")


class ConsumerProcess:
    """One consumer of the group of a stage; killed at the end of its `with` block if it still runs."""

    def __init__(
        self,
        stage: InboxStage,
        topic: str,
        member: str,
        *,
        dies: str = "",
        body: str = "",
        tags: str = "*",
        sends_to: str = "",
        fails: int = 0,
        never_retries: bool = False,
        batch: int | None = None,
        older: str = "",
        **kafka: Any,
    ) -> None:
        """Start it.

        Args:
            stage: whose group and servers it uses.
            topic: what it reads.
            member: written with each effect.
            dies: the step at which it kills itself; see `consumer_entry`.
            body: of the message with which it dies.
            tags: its tag expression.
            sends_to: the topic to which the listener sends each message on by its own outbox; "": none.
            fails: the last digit of the numbers of messages at whose first attempt the listener fails; 0: never.
            never_retries: whether a message with which its listener fails is dead at once.
            batch: how many messages its listener gets at a time, in no order; None: single messages, in order.
            older: the folder of an older library, see `older_software`; "": the one of this checkout.
            kafka: settings of librdkafka, with `_` for `.`.
        """
        settings = {name.replace("_", "."): value for name, value in kafka.items()}
        timeouts = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
        options = {
            "dsn": stage.dsn,
            "group": stage.group,
            "topic": topic,
            "tags": tags,
            "batch": batch,
            "member": member,
            "dies": dies,
            "body": body,
            "from": 0,
            "sends_to": sends_to,
            "fails": fails,
            "never_retries": never_retries,
            "timeout": 2.0,
            "kafka": {
                "bootstrap.servers": stage.bootstrap_servers,
                **(timeouts if "group.protocol" not in settings else {}),
                **settings,
            },
        }
        paths = [path for path in (older, *sys.path) if path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(ENTRY), json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, line: str, *, seconds: float = 120.0) -> None:
        """Wait until it has printed a line."""

        def printed() -> bool:
            assert self.process.poll() is None, f"the consumer ended:\n{self.output()}"
            return line in self.lines

        wait_until(printed, f"the consumer prints {line!r}", seconds=seconds)

    def wait_killed(self, *, seconds: float = 120.0) -> None:
        """Wait until it has killed itself."""
        code = self.process.wait(seconds)
        assert code == -signal.SIGKILL, f"the consumer ended with {code}:\n{self.output()}"

    def stop(self, *, seconds: float = 60.0) -> None:
        """Stop it as an operator would, and insist on a clean end."""
        self.process.terminate()
        code = self.process.wait(seconds)
        assert code == 0, f"the consumer ended with {code}:\n{self.output()}"

    def pause(self) -> None:
        """SIGSTOP: it holds all that it has."""
        pause(self.process.pid)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.process.pid, signal.SIGCONT)

    def output(self) -> str:
        """What it printed."""
        return "\n".join(self.lines[-100:])

    def _print_stacks(self) -> None:
        """Let it print what its threads do, if it runs far enough: a test has failed."""
        if self.process.poll() is None and "runs" in self.lines:
            self.process.send_signal(signal.SIGUSR1)
            with suppress(AssertionError):
                wait_until(
                    lambda: any("most recent call first" in line for line in self.lines), "", seconds=5
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._print_stacks()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()
        if kind is not None:
            sys.stderr.write(f"--- consumer {self.process.pid}\n{self.output()}\n")
