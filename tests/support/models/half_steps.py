"""What each actor of the model of half messages can do in a state, and what comes of it (see `half_model`)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.models.half_model import (
    COMMITTED,
    EXHAUSTED,
    ROLLED_BACK,
    UNBORN,
    UNKNOWN,
    VERDICTS,
    Checker,
    State,
    Step,
    Variant,
)

Next = tuple[Step, State]


def steps(v: Variant, s: State) -> Iterator[Next]:
    """Yield every step that some actor can take now."""
    waking = [*_wake(v, s)]
    yield from waking
    if waking and v.urgent:
        return
    yield from _producer(v, s)
    for number in range(v.checkers):
        yield from _checker(v, s, number)
    yield from _policy(v, s)
    yield from _operator(v, s)


def may_be_running(v: Variant, s: State) -> bool:
    """Whether the local transaction could still commit, as far as anybody knows: it is open, or yet to begin."""
    ahead = v.program[s.pc :]
    return s.written or (s.alive and ("write" in ahead or "end business" in ahead))


# The producer -----------------------------------------------------------------------------------------------


def _producer(v: Variant, s: State) -> Iterator[Next]:
    if "p" in s.waiting:
        if s.alive and v.deaths:
            yield Step("p", "dies"), s._replace(alive=False)
        return
    if not s.alive:
        yield from _sessions_of_the_dead(v, s)
        return
    if s.pc == len(v.program):
        return
    name = v.program[s.pc]
    if v.deaths:
        yield Step("p", "dies"), s._replace(alive=False)
    if name == "half":
        yield Step("p", name), s._replace(inserted=True, holder="p", pc=s.pc + 1)
    elif name == "write":
        yield Step("p", name), s._replace(written=True, pc=s.pc + 1)
    elif name == "undo":
        yield Step("p", name), s._replace(written=False, pc=s.pc + 1)
    elif name == "end business":
        yield Step("p", name), _judged(s._replace(business=True, written=False, pc=s.pc + 1))
    elif name == "end":
        yield Step("p", name), _ended(v, s, "p")._replace(pc=s.pc + 1)
    elif name == "abort":
        yield Step("p", name), _aborted(v, s._replace(written=False), "p")._replace(pc=len(v.program))
    elif s.holder not in {"", "p"} and s.message == UNKNOWN:
        if v.urgent and s.waiting:
            return
        yield Step("p", name, "waits"), s._replace(waiting=s.waiting | {"p"})
    else:
        yield _producers_lock(v, s)


def _producers_lock(v: Variant, s: State, *, waited: bool = False) -> Next:
    """`join`, or a verdict, with the lock free: a decision that was made otherwise raises and aborts everything.

    Who has waited has the row's lock, whatever the row then says. The dead abort nothing: their session does, later.
    """
    name = v.program[s.pc]
    on = s._replace(pc=s.pc + 1, waiting=s.waiting - {"p"}, holder="p" if waited else s.holder)
    if s.message == UNKNOWN:
        mark = VERDICTS.get(name, "")
        return Step("p", name, "done"), on._replace(holder="p", mark=mark)
    if VERDICTS.get(name) == s.message:
        return Step("p", name, "repeated"), on
    if not s.alive:
        return Step("p", name, "raises"), on
    over = _aborted(v, on._replace(written=False), "p")._replace(pc=len(v.program))
    return Step("p", name, "raises"), over


def _sessions_of_the_dead(v: Variant, s: State) -> Iterator[Next]:
    one = not v.other_database
    if s.holder == "p" or s.inserted or (one and s.written):
        gone = _aborted(v, s, "p")
        yield Step("p", "session ends"), gone._replace(written=False if one else gone.written)
    if s.written and not one:
        yield Step("p", "business session ends"), s._replace(written=False)
        if v.program[s.pc] == "end business":
            yield Step("p", "late commit lands"), _judged(s._replace(written=False, business=True))


# Those who ask, and those who need not ------------------------------------------------------------------------


def _checker(v: Variant, s: State, number: int) -> Iterator[Next]:
    me, checker = "ab"[number], s.checkers[number]
    if me in s.waiting:
        return

    def now(state: State, at: str, answer: str = "", used: int = 0) -> State:
        changed = Checker(at, answer, checker.rounds - used)
        return state._replace(checkers=(*s.checkers[:number], changed, *s.checkers[number + 1 :]))

    if checker.at == "claim" and checker.rounds and s.message != UNBORN:
        if s.message == UNKNOWN and not s.holder:
            yield Step(me, "claim", "claimed"), now(s._replace(claim=me), "ask")
        else:
            # Somebody who is settling it holds the claim as well.
            claim = s.claim if s.holder in {"a", "b", "e"} else ""
            told = "locked" if s.holder else "nothing"
            yield Step(me, "claim", told), now(s._replace(claim=claim), "claim", used=1)
    elif checker.at == "ask":
        answer = COMMITTED if s.business or v.nothing_found == "commit" else ROLLED_BACK
        if answer == ROLLED_BACK and v.nothing_found == "patient" and may_be_running(v, s):
            answer = UNKNOWN
        yield Step(me, "ask", answer), now(s, "settle", answer)
        if v.losses and answer != UNKNOWN:
            yield Step(me, "ask", UNKNOWN), now(s, "settle", UNKNOWN)
    elif checker.at == "settle":
        if v.claims and (s.claim != me or s.holder == "e"):
            yield Step(me, "settle", "late"), now(s, "claim", used=1)
        elif s.message != UNKNOWN and v.settle != "blind":
            yield Step(me, "settle", "decided already"), now(s._replace(claim=""), "claim", used=1)
        elif checker.answer == UNKNOWN:
            yield Step(me, "settle", "counted"), now(s._replace(claim=""), "claim", used=1)
        elif s.holder and v.settle == "skip":
            yield Step(me, "settle", "locked"), now(s._replace(claim=""), "claim", used=1)
        elif s.holder:
            waits = _judged(s._replace(waiting=s.waiting | {me}), stuck=True)
            yield Step(me, "settle", "waits"), waits
        else:
            yield _checkers_lock(v, s, number)
    elif checker.at == "commit":
        yield Step(me, "commit"), now(_ended(v, s, me)._replace(claim=""), "claim", used=1)
        if v.deaths:
            yield Step(me, "dies"), now(_aborted(v, s, me), "claim", used=checker.rounds)


def _checkers_lock(v: Variant, s: State, number: int) -> Next:
    """Settle with the lock free; one that has waited finds out only now whether it is decided."""
    me, checker = "ab"[number], s.checkers[number]
    decided = s.message != UNKNOWN and v.settle != "blind"
    changed = (
        checker._replace(at="claim", rounds=checker.rounds - 1) if decided else checker._replace(at="commit")
    )
    on = s._replace(
        checkers=(*s.checkers[:number], changed, *s.checkers[number + 1 :]), waiting=s.waiting - {me}
    )
    if decided:
        return Step(me, "settle", "decided already"), on
    return Step(me, "settle", "done"), on._replace(holder=me, mark=checker.answer)


def _policy(v: Variant, s: State) -> Iterator[Next]:
    if s.policy == "decide" and s.message != UNBORN:
        if s.message == UNKNOWN and not s.holder:
            yield Step("e", "decide", "done"), s._replace(holder="e", mark=v.policy or "", policy="commit")
        else:
            yield Step("e", "decide", "locked" if s.holder else "nothing"), s._replace(policy="")
    elif s.policy == "commit":
        yield Step("e", "commit"), _ended(v, s, "e")._replace(policy="", claim="")


def _operator(v: Variant, s: State) -> Iterator[Next]:
    at = s.operator.at
    if "o" in s.waiting:
        return
    if at == "look" and s.message in {UNKNOWN, EXHAUSTED} and not may_be_running(v, s):
        verdict = COMMITTED if s.business else ROLLED_BACK
        yield Step("o", "look", verdict), s._replace(operator=Checker("decide", verdict))
    elif at == "decide" and s.holder and s.message in {UNKNOWN, EXHAUSTED}:
        if v.urgent and s.waiting:
            return
        yield Step("o", "decide", "waits"), s._replace(waiting=s.waiting | {"o"})
    elif at == "decide":
        yield _operators_lock(s)
    elif at == "commit":
        yield Step("o", "commit"), _ended(v, s, "o")._replace(operator=Checker(""))


def _operators_lock(s: State) -> Next:
    on = s._replace(waiting=s.waiting - {"o"})
    if s.message not in {UNKNOWN, EXHAUSTED}:
        return Step("o", "decide", "decided already"), on._replace(operator=Checker(""))
    verdict = s.operator.answer
    return Step("o", "decide", "done"), on._replace(
        holder="o", mark=verdict, operator=Checker("commit", verdict)
    )


# Locks and ends of transactions -------------------------------------------------------------------------------


def _wake(v: Variant, s: State) -> Iterator[Next]:
    """Yield who may go on, now that the lock it waits for is free."""
    if s.holder:
        return
    for actor in sorted(s.waiting):
        if actor == "p":
            step, state = _producers_lock(v, s, waited=True)
        elif actor == "o":
            step, state = _operators_lock(s)
        else:
            step, state = _checkers_lock(v, s, "ab".index(actor))
        yield step._replace(outcome=f"{step.outcome} after waiting"), state


def _ended(v: Variant, s: State, actor: str) -> State:
    """A transaction of the outbox's database commits, with all that it holds."""
    message, wrong = s.message, s.wrong
    if actor == "p" and s.inserted:
        message = UNKNOWN
    if s.holder == actor and s.mark:
        if message in {COMMITTED, ROLLED_BACK} and message != s.mark:
            wrong |= {"TWO VERDICTS"}
        if actor != "p" and s.alive and s.written and s.mark == ROLLED_BACK:
            wrong |= {"UNDER ITS FEET"}
        message = s.mark
    s = s._replace(message=message, wrong=wrong, inserted=s.inserted and actor != "p")
    if s.holder == actor:
        s = s._replace(holder="", mark="")
    if actor == "p" and not v.other_database and s.written:
        s = s._replace(business=True, written=False)
    return _judged(s)


def _aborted(v: Variant, s: State, actor: str) -> State:
    """A transaction of the outbox's database rolls back; with one session the business write goes with it."""
    if s.holder == actor:
        s = s._replace(holder="", mark="")
    if actor == "p":
        s = s._replace(inserted=False, written=s.written and v.other_database)
    return s


def _judged(s: State, *, stuck: bool = False) -> State:
    """Note what can be seen to be wrong at once."""
    wrong = s.wrong
    if s.business and s.message == ROLLED_BACK:
        wrong |= {"BUSINESS WITHOUT MESSAGE"}
    if s.business and s.message == UNBORN:
        wrong |= {"BUSINESS BEFORE ITS HALF"}
    if stuck:
        wrong |= {"CHECKER WAITS"}
    return s._replace(wrong=wrong)


def verdict(v: Variant, s: State) -> frozenset[str]:
    """What is wrong when nobody takes a step any more; one truthful check then settles a half that is left."""
    message = s.message
    if message == UNKNOWN:
        message = COMMITTED if s.business else ROLLED_BACK
    if message == COMMITTED and not s.business:
        return s.wrong | {"MESSAGE WITHOUT BUSINESS"}
    return s.wrong
