"""Ids of new Kafka clusters."""

from __future__ import annotations

import base64

from outbox_local.stack.storage import cluster_id


def test_a_cluster_id_is_never_taken_for_an_option() -> None:
    made = {cluster_id() for _ in range(2_000)}
    assert len(made) == 2_000
    assert all(text[0].isalpha() for text in made)
    assert {len(base64.urlsafe_b64decode(text + "==")) for text in made} == {16}
