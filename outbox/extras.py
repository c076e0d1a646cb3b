"""Names the extra to install where an optional library is missing.

It imports the standard library only: `outbox_relay.__main__` runs this file where nothing else can be imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution

NAME = "outbox-kafka"


def install_line(extra: str = "", *, upgrade: bool = False) -> str:
    """Return the command that installs this package from where it came: a checkout, an archive, or an index.

    Args:
        extra: what to install besides the library.
        upgrade: whether it is to replace an older version.
    """
    extras = f"[{extra}]" if extra else ""
    command = "pip install --upgrade" if upgrade else "pip install"
    try:
        # PEP 610: an installer writes it for whatever came from no index.
        origin = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = origin.get("url", "")
    if not url:
        return f"{command} '{NAME}{extras}'" if extras else f"{command} {NAME}"
    if origin.get("dir_info", {}).get("editable"):
        return f"{command} -e '{url.removeprefix('file://')}{extras}'"
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs.get('requested_revision') or vcs['commit_id']}"
    return f"{command} '{NAME}{extras} @ {url}'"


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
            f"{error.name} is not installed; run: {install_line(extra)}", name=error.name
        ) from error
