"""How long a message that failed waits until it is tried again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from outbox.errors import ConfigurationError
from outbox.inbox.failures import Failure

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's levels, `messageDelayLevel` of its broker."""
FIRST_LEVEL = 3
"""The level of a consumer's first retry: 10 s."""
RETRIES = 16
_DELAY = re.compile(r"(?P<count>\d+(\.\d+)?)(?P<unit>ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 3650 * 86400.0


@dataclass(frozen=True, slots=True)
class DelaySchedule:
    """The pauses before the retries of a message, one for each.

    A message that fails once more after the last of them is dead.
    """

    pauses: tuple[float, ...]
    """Seconds before each retry."""
    never_retry: Sequence[type[Exception]] = field(default=(), kw_only=True)
    """Exceptions of a listener after which its message is dead at once."""

    def __post_init__(self) -> None:
        given: object = self.never_retry
        if not isinstance(given, list | tuple) or not all(
            isinstance(each, type) and issubclass(each, Exception) for each in given
        ):
            raise ConfigurationError(
                f"never_retry: {given!r}; allowed: a list of classes of exceptions, such as [ValueError, KeyError]"
            )
        object.__setattr__(self, "never_retry", tuple(given))

    @classmethod
    def levels(
        cls,
        retries: int = RETRIES,
        *,
        first: int = FIRST_LEVEL,
        levels: str = DELAY_LEVELS,
        never_retry: Sequence[type[Exception]] = (),
    ) -> DelaySchedule:
        """Make a schedule of RocketMQ's delay levels; retries beyond the last level have its delay.

        Args:
            retries: how many.
            first: the level of the first one, from 1.
            levels: the delay of each level.
            never_retry: exceptions of a listener after which its message is dead at once.

        Raises:
            ConfigurationError: A level cannot be read, a number is out of range, or something in `never_retry` is not a
                class of exceptions.
        """
        pauses = [seconds_of(text) for text in levels.split()]
        if not pauses or not 1 <= first <= len(pauses) or not 0 <= retries <= 1000:
            raise ConfigurationError(
                f"retries: {retries} from level {first} of {levels!r}; allowed: 0 to 1000 from a level that exists"
            )
        last = len(pauses) - 1
        chosen = tuple(pauses[min(first - 1 + number, last)] for number in range(retries))
        return cls(chosen, never_retry=never_retry)

    @classmethod
    def of(
        cls, pauses: Sequence[float | str], *, never_retry: Sequence[type[Exception]] = ()
    ) -> DelaySchedule:
        """Make a schedule of your own: seconds, or texts such as `500ms`, `10s`, `2m`; `never_retry` as of `levels`.

        Raises:
            ConfigurationError: A pause cannot be read, or `never_retry` as of `levels`.
        """
        return cls(tuple(seconds_of(pause) for pause in pauses), never_retry=never_retry)

    def after(self, attempts: int) -> float | None:
        """Return the pause after so many failed attempts; None: the message is dead."""
        return self.pauses[attempts - 1] if 1 <= attempts <= len(self.pauses) else None

    def next(self, failure: Failure, attempts: int) -> float | None:
        """Return the pause after so many failed attempts, the last one by this failure; None: the message is dead."""
        pause = self.after(attempts)
        if pause is None or failure.is_final or issubclass(failure.kind, tuple(self.never_retry)):
            return None
        return pause if failure.pause is None else failure.pause


def seconds_of(pause: float | str) -> float:
    """Read one pause.

    Raises:
        ConfigurationError: It is not a number of seconds, and not a text such as `10s`.
    """
    seconds: float = -1.0
    if isinstance(pause, int | float) and not isinstance(pause, bool):
        seconds = pause
    elif isinstance(pause, str) and (found := _DELAY.fullmatch(pause)):
        seconds = float(found["count"]) * _SECONDS[found["unit"]]
    if not 0 <= seconds <= _LONGEST:
        raise ConfigurationError(
            f"delay: {pause!r}; allowed: 0 to {_LONGEST:.0f} seconds (ten years), or a text such as '10s', '1m' or '2h'"
        )
    return float(seconds)
