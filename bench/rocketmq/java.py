"""Running Java: the programs of the jars and of the sources beside this file, compiled by a compiler among the jars."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

RELEASE = "17"
SERVICES = "META-INF/service"
"""Where RocketMQ looks for the implementations of its interfaces."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime, the jars and our own classes."""

    program: str
    jars: Path
    classes: Path

    def command(self, main: str, *arguments: str | Path, options: Sequence[str] = ()) -> list[str | Path]:
        """The command that runs a main class; our own classes come first."""
        return [self.program, *options, "-cp", f"{self.classes}:{self.jars}/*", main, *arguments]


def compiled(program: str, jars: Path, classes: Path) -> Java:
    """Compile the sources beside this file into `classes`.

    Raises:
        RuntimeError: with what the compiler said.
    """
    (compiler,) = jars.glob("ecj-*.jar")
    path = ":".join(str(jar) for jar in sorted(jars.glob("*.jar")))
    with as_file(files("bench.rocketmq")) as sources:
        found = sorted(sources.glob("*.java"))
        done = subprocess.run(
            [program, "-jar", compiler, f"-{RELEASE}", "-nowarn", "-cp", path, "-d", classes, *found],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"the Java sources of the benchmark do not compile:\n{done.stdout}{done.stderr}")
    services = classes / SERVICES
    services.mkdir(parents=True)
    (services / "org.apache.rocketmq.store.ha.HAService").write_text("Unreplicated\n")
    return Java(program, jars, classes)
