"""Two-phase commit: a message in a prepared transaction is there when that one is committed."""

from __future__ import annotations

import pytest

from outbox import Message
from tests.support.contract_sessions import Session


@pytest.mark.feature("S-01")
@pytest.mark.parametrize(("end", "messages"), [("COMMIT PREPARED", 3), ("ROLLBACK PREPARED", 0)])
def test_messages_follow_their_prepared_transaction(
    session: Session, observer: Session, end: str, messages: int
) -> None:
    name = f"outbox-{session.pid}"
    session.send(Message("orders", key="o-1"), ordered=True)
    session.send_many([Message("orders"), Message("orders")])
    session.execute(f"PREPARE TRANSACTION '{name}'")
    session.commit()
    assert observer.execute("SELECT count(*) FROM outbox.message") == [(0,)]
    observer.execute(f"{end} '{name}'")
    assert observer.execute("SELECT count(*) FROM outbox.message") == [(messages,)]
