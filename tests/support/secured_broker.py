"""A broker of its own that takes clients by TLS and a login only: SASL_SSL with SCRAM-SHA-512."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from outbox_local.stack.api import Stack
from outbox_local.stack.ports import LOOPBACK, Reservation
from outbox_local.stack.state import State
from outbox_local.stack.storage import new_storage, settings, storage_template
from tests.support.second_broker import launched
from tests.support.waiting import wait_until

USER, PASSWORD = "points", "secret-Pa55"
_SECURED = """
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL
listener.name.sasl_ssl.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
"""
_GUARDED = """
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
"""Clients of the plain listener, the broker itself among them, may do all; others what they were granted."""


class SecuredBroker:
    """One node with the programs of a stack; tests make topics at its plain listener, clients use the other one."""

    def __init__(self, stack: Stack, *, guarded: bool = False) -> None:
        """Take the stack whose programs it uses; `guarded`, a client may do only what `grant` has given it."""
        self._guarded = guarded
        state = State.load(stack._state.directory)
        assert state is not None
        self._kafka = state.kafka
        self._directory = tempfile.TemporaryDirectory(prefix="outbox-secured-")
        self._place = Path(self._directory.name)
        self._plain, self._controller, self._secured = Reservation(), Reservation(), Reservation()
        self._process: subprocess.Popen[bytes] | None = None
        self.authority = self._place / "ca.pem"
        """The certificate that clients have to trust."""
        self._write_certificates()

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients."""
        return f"{LOOPBACK}:{self._secured.port}"

    @property
    def open_servers(self) -> str:
        """The address of the plain listener, for what tests read and make."""
        return f"{LOOPBACK}:{self._plain.port}"

    @property
    def options(self) -> list[str]:
        """The login as options of a command."""
        return [part for name, value in self.login.items() for part in ("--kafka-config", f"{name}={value}")]

    @property
    def login(self) -> dict[str, Any]:
        """The settings of librdkafka for a client that is let in."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self.authority),
        }

    def _write_certificates(self) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.authority)
        issued = authority.issue_cert(LOOPBACK)
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        # Kafka reads keys in this form only.
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
        (self._place / "server.pem").write_bytes(text + chain)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.open_servers, "log_level": 0})

    def make_topic(self, name: str, partitions: int = 2) -> str:
        """Make a topic."""
        admin = self._admin()  # kept until it has replied
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        return name

    def grant(self, topic: str, *operations: AclOperation) -> None:
        """Let the clients' user do this with a topic."""
        admin = self._admin()  # kept until it has replied
        for done in admin.create_acls([_granted(topic, each) for each in operations]).values():
            done.result(30)

    def grant_prefixed(self, kind: ResourceType, prefix: str, *operations: AclOperation) -> None:
        """Let the clients' user do this with all things of a kind whose names begin so."""
        admin = self._admin()  # kept until it has replied
        pattern, allow = ResourcePatternType.PREFIXED, AclPermissionType.ALLOW
        rights = [AclBinding(kind, prefix, pattern, f"User:{USER}", "*", each, allow) for each in operations]
        for done in admin.create_acls(rights).values():
            done.result(30)

    def take_back(self, topic: str) -> None:
        """Take back what the clients' user was granted of a topic."""
        admin = self._admin()  # kept until it has replied
        [done] = admin.delete_acls([_granted(topic, AclOperation.ANY, AclBindingFilter)]).values()
        assert done.result(30), f"{USER} was granted nothing of {topic}"

    def __enter__(self) -> Self:
        template = storage_template(self._kafka.program, self._kafka.library)
        data = self._place / "data"
        new_storage(template, data)
        plain = settings(self._plain.port, self._controller.port, data)
        listeners = f",SASL_SSL://{LOOPBACK}:{self._secured.port}"
        secured = plain.replace(
            f"CONTROLLER://{LOOPBACK}:{self._controller.port}\n",
            f"CONTROLLER://{LOOPBACK}:{self._controller.port}{listeners}\n",
        ) + _SECURED.format(keystore=self._place / "server.pem")
        if self._guarded:
            secured += _GUARDED
        (self._place / "kafka.properties").write_text(secured)
        self._process = launched(self._kafka, self._place)
        wait_until(self._is_up, "the secured broker serves")
        user = UserScramCredentialUpsertion(
            USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), PASSWORD.encode()
        )
        admin = self._admin()  # kept until it has replied
        admin.alter_user_scram_credentials([user])[USER].result(30)
        return self

    def _is_up(self) -> bool:
        assert self._process is not None
        output = (self._place / "log").read_text()
        assert self._process.poll() is None, output[-3000:]
        return "Kafka Server started" in output

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for each in (self._plain, self._controller, self._secured):
            each.release()
        self._directory.cleanup()


def _granted(
    topic: str, operation: AclOperation, kind: type[AclBinding | AclBindingFilter] = AclBinding
) -> Any:
    return kind(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{USER}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
