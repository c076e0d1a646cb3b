"""A check that ends a half message without a COMMIT is a warning in the checker's log, with its reason and no body."""

from __future__ import annotations

import logging

import pytest

from outbox.checking import Answer, LocalTransactionState, ending
from tests.support.checked_half_messages import CheckStage, Script

_, ROLLBACK, UNKNOWN = LocalTransactionState


@pytest.fixture(autouse=True)
def warnings_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "outbox")


@pytest.mark.feature("H-11")
def test_a_check_that_rolls_back_is_logged_with_its_reason(
    stage: CheckStage, caplog: pytest.LogCaptureFixture
) -> None:
    half = stage.half(body=b"secret")
    stage.check(Script(Answer(ROLLBACK, "no such payment")))
    assert caplog.messages == [
        f"half message {half.id} of group payments is rolled back after check 1: no such payment"
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_check_that_commits_or_does_not_know_yet_is_not_logged(
    stage: CheckStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.half()
    stage.check(Script(UNKNOWN))
    stage.make_due()
    stage.check(Script(True))
    assert caplog.messages == []


@pytest.mark.feature("H-11")
@pytest.mark.parametrize(
    ("policy", "became"), [("ROLLBACK", "rolled back"), ("EXHAUSTED", "EXHAUSTED, an operator decides")]
)
def test_not_knowing_until_the_last_check_is_logged(
    stage: CheckStage, caplog: pytest.LogCaptureFixture, policy: str, became: str
) -> None:
    stage.group(policy=policy, max_checks=2)
    half = stage.half()
    for _ in range(2):
        stage.check(Script(UNKNOWN))
        stage.make_due()
    (text,) = caplog.messages
    assert text == (
        f"half message {half.id} of group payments is {became} after check 2: "
        "undecided after 2 checks: the group's policy"
    )


def test_many_that_end_together_are_counted_beyond_the_first(
    stage: CheckStage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "MOST_LOGGED", 2)
    stage.group(workers=8)
    stage.halves(5)
    stage.check(Script(False), batch=5)
    named = [text for text in caplog.messages if text.startswith("half message ")]
    more = [int(text.split()[0]) for text in caplog.messages if "ended like these" in text]
    assert len(named) + sum(more) == 5
    assert more, "they are settled together"


def test_what_the_producer_decided_meanwhile_is_not_logged(
    stage: CheckStage, caplog: pytest.LogCaptureFixture
) -> None:
    half = stage.half()

    def decide_and_answer(_: object) -> Answer:
        stage.decide(half, "COMMITTED")
        return Answer(ROLLBACK)

    stage.check(Script(decide_and_answer))
    assert stage.state(half) == "COMMITTED"
    assert caplog.messages == []
