"""Producer groups: which types of message one sends, and how its half messages are asked about.

Rows live in `outbox.producer_group`. A group that is not there is MIXED and has the defaults.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypedDict

from outbox import validation
from outbox.durations import LONGEST, Duration, interval, text_of
from outbox.errors import GroupTypeError, InvalidGroupError, InvalidMessageError
from outbox.operations.topics import KNOWN_FOR, MessageType, Topic, TopicCache
from outbox.statements import Plan, Rows, Statement, TextArray, load

_SQL = load("groups.sql")
_READ_REGISTRY = _SQL["read_registry"]

GROUP_TYPES = (MessageType.NORMAL, MessageType.TRANSACTION, MessageType.MIXED)
POLICIES = ("ROLLBACK", "EXHAUSTED")
MOST_CHECKS = 1_000_000
MOST_WORKERS = 64
SHORTEST = timedelta(milliseconds=1)
NAME_ALLOWED = f"1 to {validation.LONGEST_TEXT} characters without white space and control characters"
_NOT_IN_NAMES = re.compile(r"[\s\x00-\x1f\x7f]")


class ProducerGroup(NamedTuple):
    """A registered producer group; see `Outbox.register_group` for what each value means.

    Its defaults are those of a group that is not registered. They, and the limits above, hold for the library, the
    command line and the checkers, which all take them from here; the table's DEFAULTs and CHECKs are the same (a test
    compares them).
    """

    name: str
    message_type: MessageType = MessageType.MIXED
    check_after: timedelta = timedelta(seconds=6)
    check_interval: timedelta = timedelta(seconds=30)
    max_check_interval: timedelta = timedelta(minutes=10)
    check_timeout: timedelta = timedelta(seconds=3)
    max_age: timedelta = timedelta(hours=72)
    max_checks: int = 15
    policy: str = "ROLLBACK"
    workers: int = 4


UNREGISTERED = ProducerGroup("")


class GroupOptions(TypedDict, total=False):
    """What `Outbox.register_group` takes: None, or leaving an option out, keeps what is registered."""

    message_type: MessageType | str | None
    """NORMAL (no half messages), TRANSACTION (nothing else) or MIXED; fixed once registered."""
    check_after: Duration | None
    """Until a half message is first asked about (6 s)."""
    check_interval: Duration | None
    """Until it is asked about again (30 s), doubled each time."""
    max_check_interval: Duration | None
    """What the interval grows to (10 min)."""
    check_timeout: Duration | None
    """How long the checker waits for an answer (3 s)."""
    max_age: Duration | None
    """The age after which a half message is not asked about any more (72 h)."""
    max_checks: int | None
    """How often it is asked about (15)."""
    policy: str | None
    """What happens then: ROLLBACK (the default), or EXHAUSTED, which leaves it to an operator."""
    workers: int | None
    """How many half messages are asked about at the same time (4; 1 to 64)."""


def require_name(argument: str, value: Any) -> str:
    """Check the name of a producer group.

    Raises:
        InvalidGroupError: naming the argument, and what is allowed.
    """
    try:
        name = validation.text(argument, value)
    except InvalidMessageError as error:
        raise InvalidGroupError(str(error)) from None
    if _NOT_IN_NAMES.search(name):
        raise InvalidGroupError(f"{argument}: {name[:60]!r} is not a group's name; allowed: {NAME_ALLOWED}")
    return name


def require_consistent(
    group: ProducerGroup, name_of: Callable[[str], str] = str, show: Callable[[timedelta], str] = str
) -> None:
    """Refuse settings that are out of range, or that contradict one another.

    Args:
        group: All settings of the group, as they will be.
        name_of: How the caller's user knows an argument ("--max-age").
        show: How the caller's user reads a duration.

    Raises:
        InvalidGroupError: with both values.
    """
    for argument, value, least in (
        ("check_after", group.check_after, timedelta(0)),
        ("check_interval", group.check_interval, SHORTEST),
        ("max_check_interval", group.max_check_interval, SHORTEST),
        ("check_timeout", group.check_timeout, SHORTEST),
        ("max_age", group.max_age, SHORTEST),
    ):
        if not least <= value <= LONGEST:
            raise InvalidGroupError(
                f"{name_of(argument)} {show(value)} is out of range; allowed: {show(least)} to {show(LONGEST)}"
            )
    if group.max_check_interval < group.check_interval:
        raise InvalidGroupError(
            f"{name_of('max_check_interval')} {show(group.max_check_interval)} is shorter than "
            f"{name_of('check_interval')} {show(group.check_interval)}: the interval grows from the second to the first"
        )
    if group.max_age <= group.check_after:
        raise InvalidGroupError(
            f"{name_of('max_age')} {show(group.max_age)} is not longer than {name_of('check_after')} "
            f"{show(group.check_after)}: a half message would be at its end before it is first asked about"
        )


class Registry(TopicCache):
    """What one `Outbox` remembers of topics and of its own group, which is read along with topics."""

    def __init__(self, producer_group: str | None, known_for: float = KNOWN_FOR) -> None:
        super().__init__(known_for)
        self._group = producer_group
        self._until = 0.0 if producer_group is not None else float("inf")
        self._type = MessageType.MIXED

    def lookup(self, names: Iterable[str], *, half: bool = False) -> Plan[dict[str, Topic | None]]:
        """Answer the topics by name, in one statement at most.

        Raises:
            GroupTypeError: the producer group is not for this type of message.
        """
        now = time.monotonic()
        found, missing = self._known(names, now)
        if missing or (found and self._until <= now):
            rows = yield from self._read(missing)
            self._remember(found, missing, rows, now)
        if self._type is not MessageType.MIXED and found:
            self._require(half=half)
        return found

    def register_group(self, name: str, options: GroupOptions) -> Plan[ProducerGroup]:
        """Register a group as `register` does, and read this sender's own group again at its next use."""
        group = yield from register(name, **options)
        self.forget_group()
        return group

    def forget_group(self) -> None:
        """Read the group again at its next use."""
        self._until = 0.0 if self._group is not None else float("inf")

    def _read(self, names: list[str]) -> Plan[Rows]:
        rows = yield Statement(_READ_REGISTRY, (TextArray(names), self._group))
        topics = [row for row in rows if row[0] is not None]
        if self._group is not None:
            self._type = next((MessageType(row[1]) for row in rows if row[0] is None), MessageType.MIXED)
            self._until = time.monotonic() + self._known_for
        return topics

    def _require(self, *, half: bool) -> None:
        if half and self._type is MessageType.NORMAL:
            raise GroupTypeError(
                f"producer_group: {self._group!r} is registered as NORMAL, which prepares no half messages; "
                "allowed: send, or an Outbox of a group of type TRANSACTION or MIXED"
            )
        if not half and self._type is MessageType.TRANSACTION:
            raise GroupTypeError(
                f"producer_group: {self._group!r} is registered as TRANSACTION, which is not shared with other "
                "messages; allowed: prepare, or an Outbox of a group of type NORMAL or MIXED"
            )


def register(
    name: str,
    message_type: MessageType | str | None = None,
    *,
    check_after: Duration | None = None,
    check_interval: Duration | None = None,
    max_check_interval: Duration | None = None,
    check_timeout: Duration | None = None,
    max_age: Duration | None = None,
    max_checks: int | None = None,
    policy: str | None = None,
    workers: int | None = None,
) -> Plan[ProducerGroup]:
    """Add a group, or change what is given of a registered one, but for its type.

    Raises:
        InvalidGroupError: an argument is wrong.
        GroupTypeError: the group is registered with another type.
    """
    name = require_name("name", name)
    wanted = _type(message_type)
    spans = [
        interval(argument, value, InvalidGroupError, least=least)
        for argument, value, least in (
            ("check_after", check_after, timedelta(0)),
            ("check_interval", check_interval, SHORTEST),
            ("max_check_interval", max_check_interval, SHORTEST),
            ("check_timeout", check_timeout, SHORTEST),
            ("max_age", max_age, SHORTEST),
        )
    ]
    changes = (
        *(text_of(span) for span in spans),
        _number("max_checks", max_checks, MOST_CHECKS),
        _policy(policy),
        _number("workers", workers, MOST_WORKERS),
    )
    before = yield from _read(name)
    _require_type(before, wanted)
    require_consistent(_changed(before or ProducerGroup(name), spans))
    # Two that register at the same time: what the table's CHECKs then refuse is the second's error.
    yield Statement(_SQL["add_group"], (name, wanted))
    if any(change is not None for change in changes):
        yield Statement(_SQL["configure_group"], (name, wanted, *changes))
    registered = yield from _read(name)
    _require_type(registered, wanted)
    return registered or ProducerGroup(name)


def add(name: str, message_type: MessageType | str | None) -> Plan[bool]:
    """Add a group with the defaults unless it is registered; return whether it is new.

    Raises:
        InvalidGroupError: an argument is wrong.
    """
    rows = yield Statement(_SQL["add_group"], (require_name("name", name), _type(message_type)))
    return bool(rows)


def set_callback(name: str, callback: Mapping[str, Any] | None, role: str | None) -> Plan[None]:
    """Set how a registered group is asked from outside its producers, and who may decide its half messages.

    Args:
        name: The group's name.
        callback: The callback as `outbox checker run` reads it; None: it is asked in process only.
        role: The database role whose members may decide; None: every producer.
    """
    text = None if callback is None else json.dumps(callback)
    yield Statement(_SQL["set_callback"], (name, text, role), answers=False)


def _read(name: str) -> Plan[ProducerGroup | None]:
    rows = yield Statement(_SQL["read_group"], (name,))
    if not rows:
        return None
    ((_, found, *times, max_checks, policy, workers),) = rows
    after, every, most, timeout, age = (timedelta(microseconds=each) for each in times)
    return ProducerGroup(
        name, MessageType(found), after, every, most, timeout, age, max_checks, policy, workers
    )


def _require_type(group: ProducerGroup | None, wanted: str | None) -> None:
    if group is not None and wanted not in (None, group.message_type):
        raise GroupTypeError(
            f"message_type: producer group {group.name!r} is registered as {group.message_type}, not {wanted}; "
            f"allowed: {group.message_type}, or another group: what it has sent stays of its type"
        )


def _changed(group: ProducerGroup, spans: Sequence[timedelta | None]) -> ProducerGroup:
    """The group with these durations; of the two intervals, one that is not given makes room for the other."""
    after, every, most, timeout, age = spans
    interval_, longest = every or group.check_interval, most or group.max_check_interval
    if every is None:
        interval_ = min(interval_, longest)
    if most is None:
        longest = max(interval_, longest)
    return group._replace(
        check_after=group.check_after if after is None else after,
        check_interval=interval_,
        max_check_interval=longest,
        check_timeout=timeout or group.check_timeout,
        max_age=age or group.max_age,
    )


def _type(message_type: Any) -> str | None:
    if message_type is None:
        return None
    message_type = validation.exact(message_type) if isinstance(message_type, str) else message_type
    if message_type not in GROUP_TYPES:
        raise InvalidGroupError(
            f"message_type: {message_type!r} is not a group's type; allowed: {', '.join(GROUP_TYPES)}"
        )
    return str(MessageType(message_type))


def _number(argument: str, value: Any, most: int) -> str | None:
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidGroupError(f"{argument}: {value!r}; allowed: a whole number from 1 to {most}")
    return str(value)


def _policy(value: Any) -> str | None:
    value = validation.exact(value) if isinstance(value, str) else value
    if value is not None and value not in POLICIES:
        raise InvalidGroupError(f"policy: {value!r} is not a policy; allowed: {', '.join(POLICIES)}")
    return None if value is None else str(value)
