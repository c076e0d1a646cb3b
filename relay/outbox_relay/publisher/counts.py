"""What a session has done so far, for the log and for tests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """What this session has done so far."""

    published: int = 0
    recorded: int = 0
    batches: int = 0
    polls: int = 0
    released: int = 0
    last_found: float = field(default_factory=time.monotonic)
