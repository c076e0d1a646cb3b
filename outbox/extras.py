"""Names the extra to install where an optional library is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(extra: str, *modules: str) -> Iterator[None]:
    """Import in this context what an extra brings.

    Args:
        extra: its name in `outbox-kafka[…]`.
        modules: the packages that it brings; the extra's own name if they are not given.

    Raises:
        ModuleNotFoundError: naming the extra, if one of the packages is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in (modules or (extra,)):
            raise
        raise ModuleNotFoundError(
            f"{error.name} is not installed; run: pip install 'outbox-kafka[{extra}]'", name=error.name
        ) from error
