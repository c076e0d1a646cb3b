"""Random schedules: each number of a seed is one, and the same one whenever it is run."""

from __future__ import annotations

import random
import shlex
from dataclasses import dataclass, field
from typing import Any

from outbox_relay.publisher.core import Core
from outbox_relay.publisher.core.values import Limits
from tests.support.core_search.actions import Action, do, possible
from tests.support.core_search.bystanders import bystanders
from tests.support.core_search.checks import check, check_step, recover
from tests.support.core_search.world import Setting, World

WEIGHT = {
    "insert": 3, "commit": 4, "read": 8, "write": 5, "begin_write": 1, "end_write": 3, "write_die": 0.15, "send": 6,
    "deliver": 4, "silent": 2, "leaderless": 0.6, "signals": 3, "stick": 0.4, "unstick": 1.2, "repair": 1.2,
    "retry": 2, "skip": 0.7, "dead": 1.2, "pause": 0.4, "resume": 1.2, "move": 0.5, "find": 1, "release": 1,
    "cancel": 0.6, "kill": 0.15, "take": 0.6, "stop": 0.3, "crash": 0.2, "replicate": 1, "promote": 0.1, "restore": 0.1,
}  # fmt: skip
THEMES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "sick": ("stick", "unstick", "silent"),
    "hand-overs": ("stop", "take", "retry"),
    "servers": ("crash", "restore", "promote", "replicate", "take"),
    "floods": ("kill", "take"),
    "operators": ("retry", "dead", "skip", "repair"),
    "moves": ("move", "pause", "resume", "stick", "unstick", "leaderless"),
    "backlogs": ("kill", "write_die", "take", "repair", "retry", "write"),
    "deaths": ("kill", "write_die", "take"),
    "writes": ("begin_write", "read", "send"),
    "doubt": ("retry", "dead", "repair", "kill", "take", "deliver"),
    "restores": ("restore", "promote", "replicate", "dead", "take", "deliver"),
    "late": ("insert", "commit", "read", "write", "send", "stick", "unstick", "silent"),
    "crashes": ("crash", "write", "send", "deliver", "read"),
    "bystanders": ("insert", "commit", "read", "write"),
    "many": ("insert", "commit", "read", "write", "take"),
    "sudden": ("kill", "write_die", "take", "deliver", "send"),
    "gaps": ("kill", "take", "deliver", "send"),
    "crowds": ("insert", "commit", "deliver", "retry", "stick", "unstick", "silent"),
}
"""Each schedule favours some actions."""
WEIGHT_EXACTLY_ONCE = {
    **WEIGHT, "init": 9, "fetch": 9, "prove": 9, "prove_die": 0.6, "seal": 8, "begin": 9, "produce": 15, "end": 4,
    "markers": 4, "apply": 3, "timeout": 0.15, "stray": 1, "expire": 0.1, "foreign": 0.1,
}  # fmt: skip
EXACTLY_ONCE: dict[str, tuple[str, ...]] = {
    "batches": ("seal", "begin", "produce", "end"),
    "coordinators": ("kill", "take", "end", "markers", "apply", "stray", "timeout"),
    "pipelines": ("insert", "commit", "read", "write", "seal", "begin", "produce", "end"),
    "zombies": ("take", "write", "begin", "produce", "end", "init"),
    "batches of the sick": ("stick", "unstick", "silent", "retry", "repair", "produce"),
    "batches on servers": ("crash", "promote", "restore", "replicate", "take", "write"),
    "lost groups": ("take", "kill", "end", "commit"),
}
"""The same where the relay delivers exactly once."""
BUDGET = {"insert": 12, "fault": 4, "take": 3, "operator": 1, "server": 2, "lag": 0, "group": 0}
SMALL = Limits(
    page=3,
    page_size=6,
    rows=12,
    size=32,
    largest=4,
    window=3,
    batch=4,
    probation=3,
    holds=100,
    pause=8.0,
    longest_pause=64.0,
)
FEW = Limits(
    page=3,
    page_size=12,
    rows=12,
    size=64,
    largest=4,
    window=3,
    batch=2,
    probation=1,
    announced=1,
    holds=1,
    pause=1.0,
    longest_pause=4.0,
)


@dataclass
class Outcome:
    """What came of a schedule."""

    faults: set[str]
    trace: list[Action] = field(default_factory=list)


def setting_of(rng: random.Random, theme: str) -> Setting:
    """Choose what a schedule may do."""
    setting = Setting(budget=dict(BUDGET), limits=rng.choice((SMALL, SMALL, FEW)))
    calm = rng.random()
    if calm < 0.15:  # then nothing may be published twice
        setting.budget.update(fault=0, take=0, server=0)
    setting.budget["lag"] = int(calm > 0.8 or theme in ("servers", "restores"))
    setting.is_asynchronous = rng.random() < 0.3
    setting.kinds = rng.choice(((20, 3, 2, 2, 1), (20, 0, 0, 1, 0), (10, 6, 2, 0, 0), (10, 0, 0, 5, 5)))
    if theme in ("sick", "operators", "doubt", "restores") or (theme == "hand-overs" and rng.random() < 0.5):
        setting.kinds = (10, 5, 2, 0, 0)
    elif theme == "crowds":  # more failed messages than a topic may have holds
        setting.limits, setting.kinds = FEW, (10, 5, 4, 0, 0)
    elif theme in ("backlogs", "many"):
        setting.kinds = (20, 0, 3, 0, 0)
    elif theme == "bystanders":
        setting.budget.update(fault=0, take=1, server=0)
        setting.kinds = (1, 0, 0, 0, 0)
    elif theme == "sudden":
        setting.is_sudden, setting.reads_back = True, "all"
        setting.kinds = rng.choice(((1, 0, 0, 0, 0), (20, 1, 1, 2, 1)))
        setting.budget.update(fault=4, take=4, lag=0)
    elif theme == "gaps":
        setting.is_sudden, setting.reads_back = rng.random() < 0.7, "some"
        setting.kinds = (20, 0, 1, 1, 1)
    if theme in EXACTLY_ONCE:
        _deliver_exactly_once(setting, rng, theme)
    setting.floods = {"floods": 8, "many": 8, "backlogs": 3}.get(theme, 1)
    if theme not in EXACTLY_ONCE:
        setting.most_apart = 1 if theme == "many" else 9
    return setting


def _deliver_exactly_once(setting: Setting, rng: random.Random, theme: str) -> None:
    setting.is_exactly_once = True
    if theme == "pipelines":
        setting.kinds, setting.floods = (1, 0, 0, 0, 0), 1
        setting.budget.update(insert=30, operator=0, fault=5, take=2, server=int(rng.random() < 0.5), lag=0)
    elif theme == "coordinators":
        setting.kinds, setting.is_asynchronous = (20, 1, 0, 0, 0), rng.random() < 0.7
        setting.budget.update(insert=9, operator=0, fault=6, take=4, server=2, lag=0)
    elif theme == "zombies":
        setting.kinds = (20, 1, 0, 0, 0)
        setting.budget.update(operator=0, fault=2, take=5, server=0)
    elif theme == "batches of the sick":
        setting.kinds = (10, 5, 2, 0, 0)
        setting.most_apart = rng.choice((1, 9))
    elif theme == "batches on servers":
        setting.budget.update(fault=2, server=3, lag=1)
    elif theme == "lost groups":
        setting.budget.update(fault=5, take=4, group=1)


def run(
    seed: str,
    number: int,
    *,
    theme: str = "",
    length: int = 220,
    core: Any = Core,
    flags: frozenset[str] = frozenset(),
) -> Outcome:
    """Run one schedule.

    Args:
        seed: of a series of schedules.
        number: of the schedule in the series.
        theme: what it favours; "" chooses at random.
        length: the most actions before the recovery.
        core: the class of the core.
        flags: safeguards of the driver that are taken away.
    """
    try:
        return _run(random.Random(f"{seed}:{number}"), theme, length, core, flags)
    except Exception as error:
        error.add_note(repeat(seed, number, theme))
        raise


def _run(rng: random.Random, theme: str, length: int, core: Any, flags: frozenset[str]) -> Outcome:
    theme = theme or rng.choice(list(THEMES))
    w = World(setting_of(rng, theme), core, flags)
    favoured = {**THEMES, **EXACTLY_ONCE}[theme]
    weights = WEIGHT_EXACTLY_ONCE if w.setting.is_exactly_once else WEIGHT
    weight = {
        name: value * rng.choice((0.5, 1, 2)) * (6 if name in favoured else 1)
        for name, value in weights.items()
    }
    trace: list[Action] = []
    for _ in range(rng.choice((length // 5, length // 2, length))):
        options = possible(w)
        if not options:
            break
        action = rng.choices(options, [weight.get(option[0], 2.0) for option in options])[0]
        trace.append(action)
        do(w, action, rng)
        check_step(w)
    others = theme != "many" and not w.setting.is_exactly_once
    if theme == "bystanders" or (rng.random() < 0.2 and others):
        bystanders(w, rng)
    recover(w, rng)
    if theme == "bystanders" or (rng.random() < 0.05 and others):  # now most topics are healthy
        bystanders(w, rng)
        recover(w, rng)
    return Outcome(check(w), trace)


def repeat(seed: str, number: int, theme: str = "") -> str:
    """Return the command that runs a schedule again."""
    more = f" --theme {shlex.quote(theme)}" if theme else ""
    return f"python -m tests.support.core_search --seed {seed} --first {number} --schedules 1{more}"
