"""A Docker engine for the tests that run the image and the compose file for real, and images to run them with.

An engine that replies is used. Else one is started, if this machine has `dockerd` and the test runs as root, with data
of its own, and all of it is removed at the end. Nothing is installed: on Debian 12

    apt-get install docker.io docker-compose debootstrap

brings what is needed. Where no registry can be reached there are no published images, so each is built from Debian's
packages: see tests/support/stand_ins. That shows that our image and our compose file work, and nothing of the published
images of Python, PostgreSQL and Kafka.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from outbox_relay.downloads.cache import cached
from outbox_relay.downloads.jars import kafka_jars
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
STAND_INS = Path(__file__).with_name("stand_ins")
STACK = ROOT / "local" / "outbox_local" / "stack"
MIRROR = os.environ.get("OUTBOX_DEBIAN_MIRROR", "http://deb.debian.org/debian")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
BASE, POSTGRES, KAFKA = (f"outbox-stand-in-{name}" for name in ("python", "postgres", "kafka"))
PACKAGES = "ca-certificates,python3,python3-venv,python-is-python3"
LIMIT_S = 3600
"""For one command: a machine that is busy and far from its mirror builds for long."""


@dataclass(frozen=True)
class Engine:
    """An engine that replies."""

    environment: Mapping[str, str]

    def docker(self, *arguments: str) -> str:
        """Run `docker …` and return what it printed; insist on success."""
        return self.run(["docker", *arguments])

    def run(self, command: list[str], **variables: str) -> str:
        """Run a command that uses the engine."""
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, (
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
        return done.stdout

    def replies(self) -> bool:
        """Return whether it does."""
        command = ["docker", "version", "--format", "{{.Server.Version}}"]
        environment = {**os.environ, **self.environment}
        return not subprocess.run(command, env=environment, capture_output=True, check=False).returncode

    def has(self, image: str) -> bool:
        """Return whether an image is here."""
        return bool(self.docker("images", "--quiet", image).strip())


@contextmanager
def engine(directory: Path) -> Iterator[Engine]:
    """Yield an engine that replies; one that was started here ends with the block."""
    given = Engine({})
    if given.replies():
        yield given
        return
    install = "apt-get install docker.io docker-compose debootstrap"
    assert shutil.which("dockerd"), f"no Docker engine replies, and none is installed: {install}"
    assert os.geteuid() == 0, "no Docker engine replies, and only root can start one"
    with started(directory) as own:
        yield own


@contextmanager
def started(directory: Path) -> Iterator[Engine]:
    """Start an engine with its data below a directory, and leave the machine's network as it was."""
    address = f"unix://{directory}/docker.sock"
    rules = subprocess.run(["iptables-save"], capture_output=True, check=False).stdout
    command = ["dockerd", "--host", address, "--pidfile", f"{directory}/dockerd.pid"]
    command += ["--data-root", f"{directory}/data", "--exec-root", f"{directory}/exec"]
    with (directory / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        own = Engine({"DOCKER_HOST": address})
        wait_until(own.replies, "the engine replies")
        yield own
    finally:
        process.terminate()
        process.wait(120)
        subprocess.run(["ip", "link", "delete", "docker0"], capture_output=True, check=False)
        if rules:
            subprocess.run(["iptables-restore"], input=rules, capture_output=True, check=False)
        shutil.rmtree(directory / "data", ignore_errors=True)


def stand_ins(own: Engine, directory: Path) -> None:
    """Make the images that stand in for those of Python, PostgreSQL and Kafka, unless they are here."""
    if not own.has(BASE):
        archive = cached("debian-bookworm-python", _bootstrap) / "base.tar"
        trust = [
            "--change",
            f"ENV PIP_CERT={CERTIFICATES} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore",
        ]
        own.docker("import", *trust, str(archive), BASE)
    if not own.has(POSTGRES):
        own.docker("build", "--build-arg", f"BASE={BASE}", "--tag", POSTGRES, str(STAND_INS / "postgres"))
    if not own.has(KAFKA):
        context = directory / "kafka"
        shutil.copytree(STAND_INS / "kafka", context)
        shutil.copytree(kafka_jars(lambda done, of: None), context / "libs")
        shutil.copy(STACK / "log4j2.properties", context)
        own.docker("build", "--build-arg", f"BASE={BASE}", "--tag", KAFKA, str(context))


def _bootstrap(target: Path) -> None:
    """Make the archive of a small Debian with Python; it trusts what this machine trusts."""
    root = target / "root"
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root), MIRROR]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    shutil.copy(CERTIFICATES, root / str(CERTIFICATES).lstrip("/"))
    shutil.rmtree(root / "var" / "cache" / "apt", ignore_errors=True)
    subprocess.run(["tar", "-C", str(root), "-cf", str(target / "base.tar"), "."], check=True)
    shutil.rmtree(root)


def merged_compose(directory: Path) -> Path:
    """Write docker-compose.yml with what it includes, and with the stand-ins, in a form that older releases read, too.

    Compose 1.29, which Debian 12 has, knows neither `include` nor `name`; all else stays as it is.
    """
    whole: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    del whole["name"]
    for included in whole.pop("include"):
        found = yaml.safe_load((ROOT / included).read_text())
        for part in ("services", "volumes"):
            whole[part] = {**found[part], **whole[part]}
    whole["services"]["postgres"]["image"], whole["services"]["kafka"]["image"] = POSTGRES, KAFKA
    path = directory / "compose.yml"
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    return path
