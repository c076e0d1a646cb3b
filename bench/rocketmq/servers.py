"""RocketMQ's servers: a name server and a broker below the run's directory, on loopback, gone at the end."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from bench.harness.command import stop
from bench.rocketmq.java import Java
from outbox_local.stack.ports import LOOPBACK, Reservation, listens
from outbox_local.stack.process import spawn

START_LIMIT = 60.0
FAST_PORT = 2
"""The broker's second port lies so far below its first."""


class Program(NamedTuple):
    """A server program."""

    name: str
    main: str
    heap: str


NAMESRV = Program("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", "256m")
BROKER = Program("broker", "org.apache.rocketmq.broker.BrokerStartup", "1g")
LOG = "rocketmq.log"


@dataclass(frozen=True, slots=True)
class RocketMq:
    """Running servers."""

    namesrv: str
    pids: dict[str, int]


@contextmanager
def running(java: Java, directory: Path) -> Iterator[RocketMq]:
    """Start both; they end with the `with` block, and with this process."""
    home = directory / "rocketmq"
    home.mkdir()
    started: list[subprocess.Popen[bytes]] = []
    namesrv, broker = _port(), _port(FAST_PORT)
    address = f"{LOOPBACK}:{namesrv}"
    own = {"kvConfigPath": home / "kv.json", "configStorePath": home / "namesrv.properties"}
    store = {"storePathRootDir": home / "store", "storePathCommitLog": home / "store" / "commitlog"}
    fixed = (files("bench.rocketmq") / "broker.conf").read_text()
    try:
        settings = _settings({"listenPort": namesrv, "bindAddress": LOOPBACK, **own})
        started.append(_start(java, NAMESRV, home, settings))
        _wait(started[-1], namesrv, home)
        settings = fixed + _settings({"listenPort": broker, "namesrvAddr": address, **store})
        started.append(_start(java, BROKER, home, settings))
        _wait(started[-1], broker, home)
        yield RocketMq(address, {"namesrv": started[0].pid, "rocketmq": started[1].pid})
    finally:
        for process in reversed(started):
            stop(process)


def _settings(values: Mapping[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _start(java: Java, program: Program, home: Path, settings: str) -> subprocess.Popen[bytes]:
    path = home / f"{program.name}.conf"
    path.write_text(settings)
    heap = (f"-Xms{program.heap}", f"-Xmx{program.heap}")
    options = (*heap, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}")
    command = java.command(program.main, "-c", path, options=options)
    return spawn(command, log=home / LOG, death_signal=signal.SIGKILL)


def _wait(process: subprocess.Popen[bytes], port: int, home: Path) -> None:
    """Wait until a server listens."""
    deadline = time.monotonic() + START_LIMIT
    while not listens(port):
        if process.poll() is not None or time.monotonic() > deadline:
            end = (home / LOG).read_text(errors="replace")[-2000:]
            raise RuntimeError(f"a server of RocketMQ did not start (code {process.poll()}):\n{end}")
        time.sleep(0.05)


def _port(below: int = 0) -> int:
    """Find a free port whose neighbour so far below is free as well."""
    while True:
        port = Reservation()
        neighbour = Reservation(port.port - below) if below else port
        for each in {port, neighbour}:
            each.release()
        if neighbour.port == port.port - below:
            return port.port
