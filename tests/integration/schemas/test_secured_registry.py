"""A registry behind TLS and a password, and that neither appears in a text."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from outbox.codecs import RegistryError, RegistryUnavailableError
from outbox.codecs.schemas import AvroSchema, SchemaRegistry
from tests.support.guarded_registry import PASSWORD, USER, guarded
from tests.support.order_schemas import AVRO, ORDER
from tests.support.schema_registry import RegistryServer

pytestmark = [pytest.mark.xdist_group("schema registry"), pytest.mark.feature("H-27")]


def test_a_registry_behind_tls_and_a_password_is_used_and_neither_gets_into_texts(
    registry_server: RegistryServer, schema_topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with guarded(registry_server.url, tmp_path) as (url, trusted):
        trust = {"ssl.ca.location": str(trusted)}
        login = {"basic.auth.user.info": f"{USER}:{PASSWORD}"}
        escaped = url.replace("https://", f"https://{USER}:{PASSWORD.replace(':', '%3A')}@")
        for address, config in ((url, {**trust, **login}), (escaped, trust)):
            with SchemaRegistry(address, config=config, timeout=30) as registry:
                orders = AvroSchema(registry, schema_topic, AVRO)
                orders.load(register=True)
                assert orders.deserialize(orders.serialize(ORDER)) == ORDER
                assert url in repr(registry)
                assert PASSWORD not in repr(registry) + str(vars(registry))
        wrong = {**trust, "basic.auth.user.info": f"{USER}:another"}
        with SchemaRegistry(url, config=wrong, timeout=30) as registry:
            with pytest.raises(RegistryError, match="does not admit this client") as refused:
                AvroSchema(registry, schema_topic, AVRO).load()
            assert not isinstance(refused.value, RegistryUnavailableError)
        untrusting = pytest.raises(RegistryUnavailableError, match="certificate")
        with SchemaRegistry(escaped, timeout=30) as registry, untrusting as untrusted:
            AvroSchema(registry, schema_topic, AVRO).load()
        texts = caplog.text + str(refused.value) + str(untrusted.value)
        for secret in (PASSWORD, PASSWORD.replace(":", "%3A"), "another"):
            assert secret not in texts
