"""The actions of the world: which ones are possible now, and what each does."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from outbox_relay.publisher.core.values import Proof
from tests.support.core_search.leader import Leader
from tests.support.core_search.tables import DELAYED, Draft
from tests.support.core_search.transacting import ExactLeader, new_leader
from tests.support.core_search.world import KEYS, KIND_NAMES, World

Action = tuple[Any, ...]
"""A name and its arguments."""


def possible(w: World) -> list[Action]:
    """Return every action that the world allows now."""
    budget, postgres = w.setting.budget, w.postgres
    found: list[Action] = []
    if budget["insert"] and len(postgres.active) < 3 and len(_locked(w)) < 5:
        found.append(("insert",))
    for xid in postgres.active:
        if not w.setting.is_asynchronous:
            found.append(("commit", xid, True))
        found.append(("commit", xid, False))
    for number, leader in enumerate(w.leaders):
        found += _of_leader(w, number, leader)
    last = w.last
    is_free = last is None or last.gives_back() or not (w.setting.is_sudden and last.is_alive)
    if is_free and (last is None or last.gives_back() or budget["take"]):
        found.append(("take",))
    if w.setting.is_exactly_once:
        found += of_kafka(w)
    if budget["operator"]:
        found += _of_operators(w)
    if budget["server"]:
        found += [("crash",), ("replicate",)]
        if budget["lag"]:
            found += [("promote",), ("restore",)]
    return found


def _of_leader(w: World, number: int, leader: Leader) -> list[Action]:
    found: list[Action] = []
    may_fail = w.setting.budget["fault"] > 0
    for producer, wires in leader.wire.items():
        for name, items in wires.items():
            if items and name not in w.stuck:
                found.append(("deliver", number, producer, name, True))
                if may_fail and not w.setting.is_sudden:
                    found.append(("deliver", number, producer, name, False))
    if leader.travelling is not None:
        found.append(("end_write", number))
    if not leader.is_alive:
        return found
    if isinstance(leader, ExactLeader):
        found += _of_batches(w, number, leader)
        if not leader.has_core:
            return found
    found += [("read", number), ("signals", number)]
    if not w.setting.is_exactly_once and any(one.queued for one in leader.core.streams.by_name.values()):
        found.append(("send", number))
    if leader.travelling is None:
        found += [("write", number), ("begin_write", number)]
        if w.setting.most_apart == 1:
            found += [("locked_write", number)]
            found += [] if w.setting.is_exactly_once else [("choosy_send", number)]
    if may_fail:
        found += [("kill", number), ("write_die", number)]
    if not leader.core.is_stopping and leader is w.last:
        found.append(("stop", number))
    if any(name in w.stuck for name in leader.core.streams.by_name):
        found += [("silent", number), ("leaderless", number)]
    return found


def _of_batches(w: World, number: int, leader: ExactLeader) -> list[Action]:
    """Return what a leader does next with Kafka: it replaces its producers, or sends batches."""
    may_fail = w.setting.budget["fault"] > 0
    if leader.phase != "leading":
        is_early = "the offset is read before the fence" in w.flags
        may_fetch = w.kafka.is_stable() or "offsets may be unstable" in w.flags
        if leader.phase == "known":
            proves: list[Action] = [("prove", number)]
            return [*proves, ("prove_die", number)] if may_fail and not leader.has_core else proves
        if leader.phase == "inited" or (leader.phase == "new" and is_early):
            return [("fetch", number)] if may_fetch else []
        return [("init", number)] if leader.can_init() else []
    found: list[Action] = []
    batches = leader.batches.batches
    if any(stream.queued for stream in leader.core.streams.by_name.values()):
        found.append(("seal", number))
    may_begin = {"intended"} | ({"sealed"} if "a batch is sent before its intent" in w.flags else set())
    if any(batch.state in may_begin for batch in batches):
        found.append(("begin", number))
    if any(batch.state == "produced" for batch in batches):
        found.append(("end", number, "answered"))
        if may_fail:
            lost = ("answer lost", "request lost", "delayed", "sent again")
            found += [("end", number, what) for what in lost]
    return found + [("produce", number, n) for n in range(len(leader.todo)) if leader.may_produce(n)]


def of_kafka(w: World) -> list[Action]:
    """Return what Kafka does by itself with transactions."""
    found: list[Action] = [("markers", tid) for tid, one in w.kafka.by_id.items() if one.status == "prepared"]
    if w.setting.budget["fault"]:
        found += [("timeout", tid) for tid, one in w.kafka.by_id.items() if one.status == "open"]
    if w.kafka.applying:
        found.append(("apply",))
    found += [("stray", n) for n in range(len(w.kafka.stray))]
    if w.setting.budget["group"]:
        found += [("expire",), ("foreign",)]
    return found


def _of_operators(w: World) -> list[Action]:
    postgres, db = w.postgres, w.postgres.db
    found: list[Action] = []
    for name in (("a", 0), ("a", 1), ("b", 0)):
        found.append(("unstick" if name in w.stuck else "stick", name))
    if postgres.kinds.poison or postgres.kinds.fault:
        found.append(("repair",))
    for scope, sent_to in db.holds.items():
        if scope.kind != "partition" and scope not in db.requests:
            found.append(("retry", scope))
        mine = sorted(
            (wait.place, id_, wait.in_doubt) for id_, wait in db.waiting.items() if wait.scope == scope
        )
        # Before a leader has taken a server over, its tables do not show what is in doubt.
        is_taken = db.place == postgres.server or "operators act before a leader" in w.flags
        may_ask = mine and is_taken and (mine[0][0] > sent_to or "operators ask nobody" in w.flags)
        if may_ask and not mine[0][2]:
            found += [("skip", mine[0][1], scope), ("dead", mine[0][1], scope)]
    for topic in ("a", "b"):
        found.append(("resume" if topic in db.paused else "pause", topic))
    if "a" not in db.asked:
        found.append(("move", "a", 5 - db.topics["a"]))  # 2 or 3
    if "n" not in db.asked:
        found.append(("find", "n"))
    for id_, wait in db.waiting.items():
        if wait.scope == DELAYED:
            found += [("release", id_), ("cancel", id_)]
    return found


def _locked(w: World) -> set[str | None]:
    """Return the keys of which a transaction runs: `send` follows the lock of its key."""
    return {msg.key for rows in w.postgres.active.values() for msg in rows}


def do(w: World, action: Action, rng: random.Random) -> None:
    """Execute one action."""
    w.now += 1
    name, *args = action
    if name in COSTS:
        w.setting.budget[COSTS[name]] -= 1
    if (name == "deliver" and not args[-1]) or (name == "end" and args[-1] != "answered"):
        w.setting.budget["fault"] -= 1
    if name == "insert":
        w.postgres.begin_insert(drafts(w, rng))
    elif name in OF_LEADER:
        OF_LEADER[name](w.leaders[args[0]], *args[1:])
    else:
        OF_WORLD[name](w, *args)


COSTS = {
    "insert": "insert",
    "write_die": "fault",
    "kill": "fault",
    "crash": "server",
    "promote": "server",
    "restore": "server",
    "prove_die": "fault",
    "timeout": "fault",
    "expire": "group",
    "foreign": "group",
}


def _choosy_send(leader: Leader) -> None:
    """Give the producers what the core returns, of which they do not take what Kafka would refuse."""
    sent = leader.core.to_send()
    poison = leader.w.postgres.kinds.poison
    while sent:
        item, producer = sent.pop(0)
        name = (item.row.topic, item.partition)
        if item.row.content in poison:
            behind = [one for one, _ in sent if (one.row.topic, one.partition) == name]
            sent = [each for each in sent if (each[0].row.topic, each[0].partition) != name]
            leader.core.not_taken([item, *behind], is_accused=True)
        elif producer not in leader.dead:
            leader.wire.setdefault(producer, {}).setdefault(name, deque()).append(item)


def _locked_write(leader: Leader) -> None:
    """Write what needs no row that another session holds."""
    leader.begin_write(leader.core.publications)
    leader.end_write()


def _write(leader: Leader, *, dies: bool = False) -> None:
    leader.begin_write()
    leader.end_write(dies=dies)


OF_LEADER: dict[str, Callable[..., None]] = {
    "read": Leader.read,
    "send": Leader.send,
    "signals": Leader.signals,
    "begin_write": Leader.begin_write,
    "locked_write": _locked_write,
    "choosy_send": _choosy_send,
    "end_write": Leader.end_write,
    "write": _write,
    "write_die": lambda leader: _write(leader, dies=True),
    "kill": Leader.die,
    "stop": lambda leader: leader.core.stop(),
    "silent": lambda leader: leader.find_silent(is_leaderless=False),
    "leaderless": lambda leader: leader.find_silent(is_leaderless=True),
    "deliver": lambda leader, producer, name, is_answered: leader.deliver(
        producer, name, is_answered=is_answered
    ),
    **{
        name: getattr(ExactLeader, name)
        for name in ("init", "fetch", "prove", "seal", "begin", "produce", "end")
    },
    "prove_die": lambda leader: leader.prove(dies=True),
}


def _commit(w: World, xid: int, is_synchronous: bool) -> None:
    kinds = w.postgres.kinds
    delayed = frozenset(
        msg.uid
        for msg in w.postgres.active[xid]
        if msg.uid in kinds.exempt - kinds.expiring - kinds.poison - kinds.fault and msg.key is not None
    )
    w.postgres.commit(xid, is_synchronous=is_synchronous, delayed=delayed)


def _take(w: World) -> None:
    last = w.last
    if last is not None and last.gives_back():
        is_clean = last.core.is_clean() or "a clean end hides an unclean one" in w.flags
        w.postgres.db.is_clean, last.is_alive = is_clean, False
        if any(place >= 0 for place in w.postgres.db.holds.values()):
            w.faults.append("ANNOUNCED")  # what was never sent would be in doubt
    elif last is not None:
        w.setting.budget["take"] -= 1
    w.leaders.append(new_leader(w))


def _server(kind: str) -> Callable[[World], None]:
    def ended(w: World) -> None:
        if kind != "crash":
            w.setting.budget["lag"] -= 1
        w.end_server(kind=kind)

    return ended


def _replicate(w: World) -> None:
    w.postgres.standby = w.postgres.durable.copy()


def _stick(w: World, name: tuple[str, int]) -> None:
    w.stuck ^= {name}


def _repair(w: World) -> None:
    w.disturbed.add("s")  # what it skipped is sent now, and so what follows it is repeated
    w.postgres.kinds.poison.clear()
    w.postgres.kinds.fault.clear()


def _retry(w: World, scope: Any) -> None:
    w.postgres.db.requests |= {scope}
    w.postgres.flush()


def _give_up(state: str) -> Callable[..., None]:
    def given_up(w: World, id_: int, scope: Any) -> None:
        db = w.postgres.db
        w.postgres.change(id_, state=state)
        w.postgres.kinds.exempt.add(db.messages[id_].uid)
        del db.waiting[id_]
        if scope.kind != "partition":
            db.requests |= {scope}
        w.postgres.flush()

    return given_up


def _pause(w: World, topic: str) -> None:
    w.postgres.db.paused ^= {topic}
    w.postgres.flush()


def _ask(w: World, topic: str, count: int = 1) -> None:
    w.disturbed.add(topic)  # a key that moves is not found where it was
    w.postgres.db.asked[topic] = count
    w.postgres.flush()


def _release(w: World, id_: int) -> None:
    """A delayed message falls due: it gets a new transaction id and a new place."""
    db = w.postgres.db
    position, db.next_position = db.next_position, db.next_position + 1
    w.postgres.change(id_, xid=w.postgres.next_xid(), position=position)
    del db.waiting[id_]
    w.postgres.flush()


def _cancel(w: World, id_: int) -> None:
    w.postgres.change(id_, state="CANCELLED")
    del w.postgres.db.waiting[id_]
    w.postgres.flush()


def _lose_group(w: World, offsets: dict[str, Proof]) -> None:
    w.is_group_lost = True
    w.kafka.offsets = offsets


OF_WORLD: dict[str, Callable[..., None]] = {
    "commit": _commit,
    "take": _take,
    "crash": _server("crash"),
    "promote": _server("promote"),
    "restore": _server("restore"),
    "replicate": _replicate,
    "stick": _stick,
    "unstick": _stick,
    "repair": _repair,
    "retry": _retry,
    "skip": _give_up("SKIPPED"),
    "dead": _give_up("DEAD"),
    "pause": _pause,
    "resume": _pause,
    "move": _ask,
    "find": _ask,
    "release": _release,
    "cancel": _cancel,
    "markers": lambda w, tid: w.kafka.write_markers(tid),
    "apply": lambda w: w.kafka.apply(),
    "timeout": lambda w, tid: w.kafka.abort(tid),
    "stray": lambda w, n: w.kafka.commit(*w.kafka.stray.pop(n)),
    "expire": lambda w: _lose_group(w, {}),
    "foreign": lambda w: _lose_group(w, {"0": Proof(w.kafka.newest().number + 1, "another's")}),
}


def drafts(w: World, rng: random.Random) -> list[Draft]:
    """Choose the messages of a transaction."""
    locked = _locked(w)
    free = [(topic, key) for topic, keys in KEYS.items() for key in keys if key is None or key not in locked]
    rows = []
    for topic, key in rng.sample(free, min(len(free), rng.choice((1, 1, 2, 3)))):
        for _ in range(rng.choices((1, 2, 5, 24), (60, 20, 19, w.setting.floods))[0]):
            kind = rng.choices(KIND_NAMES, w.setting.kinds)[0]
            rows.append(Draft(topic, key, kind if topic != "n" else "", rng.choice((1, 1, 1, 2, 4))))
    return rows
