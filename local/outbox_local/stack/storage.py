"""A broker's storage: formatted once per machine, because formatting starts a Java of its own for a second."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import tempfile
import uuid
from importlib.resources import files
from pathlib import Path

from outbox_local.stack.jvm import java_command
from outbox_relay.downloads.cache import cached
from outbox_relay.downloads.errors import StackError
from outbox_relay.downloads.jars import cache_name


def settings(port: int, controller_port: int, data: Path) -> str:
    """Write out a broker's settings: the common ones, and where it listens and keeps its data."""
    return (files("outbox_local.stack") / "kafka.properties").read_text() + (
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}\n"
        # Voters by setting, not in the metadata: a controller whose port was taken may move to another.
        f"controller.quorum.voters=1@127.0.0.1:{controller_port}\n"
        f"log.dirs={data}\n"
    )


def storage_template(java: str, library: str) -> Path:
    """Answer a formatted storage without a record, made once. Raises StackError when it cannot be formatted."""

    def fill(target: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="outbox-format-") as directory:
            # Neither the ports nor the place leave a trace in the storage.
            made, path = Path(directory) / "storage", Path(directory) / "kafka.properties"
            path.write_text(settings(9092, 9093, made))
            arguments = ("format", "--cluster-id", cluster_id(), "--config", path)
            command = java_command(java, library, "kafka.tools.StorageTool", *arguments)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise StackError(
                    f"Kafka's storage could not be formatted: {(done.stdout + done.stderr)[-1000:]}"
                )
            shutil.copytree(made, target, dirs_exist_ok=True)

    return cached(f"{cache_name()}-storage", fill)


def new_storage(template: Path, target: Path) -> None:
    """Make the storage of a new cluster in an empty directory: the template's, but for the cluster's id."""
    shutil.copytree(template, target, dirs_exist_ok=True)
    meta = target / "meta.properties"
    meta.write_text(re.sub(r"(?m)^cluster\.id=.*$", f"cluster.id={cluster_id()}", meta.read_text()))


def cluster_id() -> str:
    """A new cluster's id, which begins with a letter: Kafka's tools take one that begins with "-" for an option."""
    first, *others = uuid.uuid4().bytes
    return base64.urlsafe_b64encode(bytes([first & 0x7F, *others])).decode().rstrip("=")
