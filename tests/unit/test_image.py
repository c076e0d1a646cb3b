"""The image without Docker: what its Dockerfile states, and the wheel built from exactly the files that it copies."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def instructions() -> list[tuple[str, str]]:
    """Every instruction of the Dockerfile with its text, continuation lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    return found[max(at for at, (word, _) in enumerate(found) if word == "FROM") :]


def copied() -> list[str]:
    """What the build stage copies from the checkout into its working directory."""
    stage = (ROOT / "Dockerfile").read_text(encoding="utf-8").split("\nFROM ")[1]
    return [
        name.rstrip("/")
        for words in re.findall(r"^COPY (?!--)(.+)$", stage, re.MULTILINE)
        for name in words.split()[:-1]
    ]


def test_the_base_is_one_release_of_python_and_of_debian() -> None:
    (base,) = (rest for word, rest in instructions() if word == "ARG" and rest.startswith("BASE="))
    assert re.fullmatch(r"BASE=python:3\.\d+-slim-[a-z]+(@sha256:[0-9a-f]{64})?", base)
    assert {rest.split()[0] for word, rest in instructions() if word == "FROM"} == {"${BASE}"}


def test_packages_are_installed_by_hash_only() -> None:
    installs = [
        command
        for word, rest in instructions()
        if word == "RUN"
        for command in rest.split("&&")
        if "pip install" in command or "pip wheel" in command
    ]
    assert len(installs) == 4
    of_lock, of_source = installs[:2], installs[2:]
    assert all("--require-hashes" in command for command in of_lock)
    assert all("--no-deps" in command for command in of_source), "the wheel brings nothing along"
    assert [command.split()[-1] for command in of_source] == [".", "/wheel/*.whl"]
    assert "--no-build-isolation" in of_source[0]


def test_the_process_is_not_root_and_kubernetes_can_tell() -> None:
    (user,) = (rest for word, rest in last_stage() if word == "USER")
    uid, gid = user.split(":")
    assert int(uid) > 0
    assert int(gid) > 0
    (made,) = (rest for word, rest in last_stage() if word == "RUN" and "useradd" in rest)
    assert f"--uid {uid}" in made
    assert f"--gid {gid}" in made


def test_the_image_is_the_command_and_ends_in_order() -> None:
    found = dict(last_stage())
    assert json.loads(found["ENTRYPOINT"]) == ["outbox"]
    assert json.loads(found["CMD"]) == ["relay", "run"]
    assert found["STOPSIGNAL"] == "SIGTERM"


def test_the_image_says_what_it_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (version,) = (rest for word, rest in last_stage() if word == "ARG" and rest.startswith("VERSION="))
    assert version == f"VERSION={project['version']}"
    labels = dict(
        re.findall(
            r'org\.opencontainers\.image\.(\w+)="([^"]*)"',
            next(rest for word, rest in last_stage() if word == "LABEL"),
        )
    )
    assert labels["title"] == project["name"]
    assert labels["licenses"] == project["license"]
    assert labels["version"] == "${VERSION}"


def test_no_secret_is_in_the_image() -> None:
    named = [rest for word, rest in instructions() if word in {"ENV", "ARG", "COPY", "ADD"}]
    assert not [text for text in named if re.search(r"(?i)dsn|password|secret|token|\.env", text)]
    assert not [text for word, text in instructions() if word == "ADD"]


def test_the_docker_context_holds_everything_that_is_copied() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1] == "*"
    assert len(copied()) >= 9
    assert set(copied()) <= {line.removeprefix("!") for line in lines if line.startswith("!")}


def test_the_wheel_built_from_the_copied_files_holds_every_package(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(ROOT / name, source / name)
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
        str(source),
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packed == {
        str(path.relative_to((ROOT / package).parent))
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
