"""Makes the virtual environment of a checkout from a lock file, once per lock.

Run by the Makefile with whatever Python the machine has. Nothing is installed yet, so this file uses the
standard library only, and an older Python can still read it and look for a newer one.

    python3 requirements/install.py run      # what `outbox demo` needs
    python3 requirements/install.py test     # that, and what the tests and checks need

Rules it keeps:

* The environment is reused while its lock is unchanged: a few hashes, no network.
* An install that was interrupted (Ctrl-C, power, full disk) leaves its mark, and the next run starts afresh,
  because half a package on disk looks installed to every installer. So does one that was moved, or whose
  Python is gone.
* Every package is checked against the hashes of the lock.
* uv installs, in a third of pip's time. pip installs uv, and does the whole work itself where uv cannot (no
  build for this machine, a cache it cannot write) or must not: uv does not read pip's settings, so a machine
  that names its own package index to pip is served by pip.
* Two runs at a time wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

OLDEST = (3, 11)
ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UNFINISHED = VENV / ".unfinished"
# An environment made from the lock on the right serves the wish on the left.
SERVED_BY = {"run": ("run", "test"), "test": ("test",)}
# pip settings that say where packages come from, or the way there: uv would not follow them.
ROUTES = ("index-url", "extra-index-url", "no-index", "proxy", "trusted-host")


def main(arguments: list[str]) -> int:
    """Bring `.venv` in line with the lock named on the command line; answer the exit code."""
    if sys.version_info < OLDEST:
        return use_newer_python()
    if len(arguments) != 1 or arguments[0] not in SERVED_BY:
        return fail(f"name one lock: {' or '.join(SERVED_BY)}")
    wish = arguments[0]
    with only_one():
        return 0 if any(is_current(lock) for lock in SERVED_BY[wish]) else install(wish)


def install(wish: str) -> int:
    """Make or complete `.venv`; answer the exit code."""
    started = time.monotonic()
    say(f"making .venv from requirements/{wish}.txt (once per lock; a minute at most on a usual line)")
    try:
        make_environment()
        fill_environment(wish)
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd))
        return fail(f"this ended with {error.returncode}, its own words are above: {command}")
    except KeyboardInterrupt:
        return fail("interrupted; the next run starts afresh")
    stamp(wish).write_text(fingerprint(wish))
    UNFINISHED.unlink()
    say(f".venv is ready after {time.monotonic() - started:.0f} s")
    return 0


def use_newer_python() -> int:
    """Start again under a Python that is new enough, or say which one is missing."""
    for minor in range(OLDEST[1] + 3, OLDEST[1] - 1, -1):
        name = f"python3.{minor}"
        if shutil.which(name) and subprocess.call([name, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            return subprocess.call([name, *sys.argv])
    running = ".".join(map(str, sys.version_info[:2]))
    oldest = ".".join(map(str, OLDEST))
    return fail(
        f"Python {running} is too old, {oldest} is needed: install it, or name it: make PYTHON=/path/to/it"
    )


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Hold the only right to change `.venv`; the system gives it back should this process die."""
    guard = os.open(LOCKS, os.O_RDONLY)
    try:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another run that makes .venv")
            fcntl.flock(guard, fcntl.LOCK_EX)
        yield
    finally:
        os.close(guard)


def stamp(lock: str) -> Path:
    """Where a finished install of a lock is noted."""
    return VENV / f".installed-{lock}"


def fingerprint(lock: str) -> str:
    """All that a finished install depends on: the place, the interpreter, the lock, our own metadata."""
    digest = hashlib.sha256()
    for name in ("installer", "build", lock):
        digest.update((LOCKS / f"{name}.txt").read_bytes())
    digest.update((ROOT / "pyproject.toml").read_bytes())
    return f"{VENV}\n{PYTHON.resolve()}\n{digest.hexdigest()}\n"


def is_current(lock: str) -> bool:
    """Whether `.venv` is a finished install of this very lock, and whole."""
    return (
        not UNFINISHED.exists()
        and PYTHON.exists()
        and stamp(lock).exists()
        and stamp(lock).read_text() == fingerprint(lock)
    )


def is_usable() -> bool:
    """Whether `.venv` can be added to: finished, not moved, with a Python and a pip that run."""
    stamps = [path.read_text().splitlines()[:2] for path in VENV.glob(".installed-*")]
    if UNFINISHED.exists() or any(place != fingerprint("run").splitlines()[:2] for place in stamps):
        return False
    probe = f"import sys, pip; sys.exit(sys.version_info < {OLDEST})"
    return PYTHON.exists() and subprocess.call([PYTHON, "-c", probe], stderr=subprocess.DEVNULL) == 0


def make_environment() -> None:
    """Leave an environment with pip in it, and the mark that it is not finished."""
    if not is_usable():
        shutil.rmtree(VENV, ignore_errors=True)
        VENV.mkdir()
        UNFINISHED.touch()
        create_environment()
    UNFINISHED.touch()
    for path in VENV.glob(".installed-*"):
        path.unlink()


def create_environment() -> None:
    """Make an environment with pip in it."""
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)


def fill_environment(lock: str) -> None:
    """Install the lock and this project, the latter in place, so that edits need no second install."""
    settings = pip_settings()
    tool: Callable[..., None] = pip
    routes = [name for name in ROUTES if name in settings]
    if routes:
        say(f"pip's own {', '.join(routes)} is set: pip installs, which takes longer than uv")
        install_locked(pip, lock)
    else:
        try:
            pip(*locked("installer"))
            tool = functools.partial(uv, environment=uv_environment(settings))
            install_locked(tool, lock)
        except (subprocess.CalledProcessError, OSError):
            say("uv does not work on this machine: pip installs, which takes longer")
            tool = pip
            install_locked(pip, lock)
    tool("--no-deps", "--no-build-isolation", "-e", str(ROOT))


def install_locked(tool: Callable[..., None], lock: str) -> None:
    """Install what builds packages, then the lock: a build of its own would fetch tools that no lock names."""
    tool(*locked("build"))
    tool("--no-build-isolation", *locked(lock))


def locked(lock: str) -> list[str]:
    """The arguments that install a lock, and nothing whose hash differs."""
    return ["--require-hashes", "-r", str(LOCKS / f"{lock}.txt")]


def pip_settings() -> dict[str, str]:
    """What pip was told by its files and the environment: name → value, the sections dropped."""
    listing = subprocess.run(
        [PYTHON, "-m", "pip", "config", "list"], check=True, text=True, stdout=subprocess.PIPE
    )
    lines = (line.partition("=") for line in listing.stdout.splitlines())
    return {name.rpartition(".")[2]: value.strip("'\"") for name, _, value in lines}


def pip(*wanted: str) -> None:
    """Install with the environment's pip, without its notes on newer releases and on being root."""
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore", "PIP_USER": "0"}
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--no-compile", *wanted]
    subprocess.run(command, check=True, env={**os.environ, **quiet})


def uv_environment(settings: dict[str, str]) -> dict[str, str]:
    """The variables for uv: trust what the system and pip trust; copy, so that the cache may lie anywhere."""
    environment = {"UV_LINK_MODE": "copy", **os.environ, "UV_SYSTEM_CERTS": "1"}
    if "cert" in settings:
        environment.setdefault("SSL_CERT_FILE", settings["cert"])
    return environment


def uv(*wanted: str, environment: dict[str, str]) -> None:
    """Install with the environment's uv."""
    command = [str(VENV / "bin" / "uv"), "pip", "install", "--quiet", "--python", str(PYTHON)]
    subprocess.run([*command, *wanted], check=True, env=environment)


def say(text: str) -> None:
    """Tell what happens: the first run takes long enough for someone to wonder."""
    print(f"install: {text}", flush=True)


def fail(text: str) -> int:
    """Say what is wrong and answer the exit code for it."""
    print(f"install: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
