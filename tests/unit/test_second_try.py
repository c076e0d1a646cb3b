"""A test of which only a wait ran out runs once more; whatever else fails is a failure at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.failures import FILE, ORDER

ROOT = Path(__file__).parents[2]
PASSES_LATER = """
def test_late():
    ran = pathlib.Path("ran")
    before = ran.exists()
    ran.touch()
    wait_until(lambda: before, "it ran before", seconds=0.01)
"""
FIXTURE = """
@pytest.fixture
def broken():
    yield
    assert False, "a message is lost"
"""
RAISED_FROM = """
def test_from():
    try:
        wait_until(lambda: 0, "x", seconds=0.01)
    except AssertionError as error:
        raise AssertionError("lost") from error
"""
STAGE = """if not before:
        raise StageTimeoutError("it lives on")"""
CASES = {
    "a wait that is true the second time": (PASSES_LATER, 0, 1),
    "a wait that is never true": ("def test_never():\n    wait_until(lambda: 0, 'x', seconds=0.01)", 1, 1),
    "a verdict": (PASSES_LATER + "def test_lost():\n    assert False, 'a message is lost'", 1, 0),
    "a wait, and a verdict as it is cleaned up": (FIXTURE + PASSES_LATER.replace("()", "(broken)", 1), 1, 0),
    "a failure raised from a wait": (
        RAISED_FROM,
        1,
        0,
    ),
    "a wait in each of many tests": (
        "@pytest.mark.parametrize('n', range(6))\ndef test_many(n):\n    wait_until(lambda: 0, 'x', seconds=0.01)",
        1,
        0,
    ),
}


def project(folder: Path, text: str, name: str = "test_it.py") -> Path:
    """Make a folder with one file of tests."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text('pytest_plugins = ("tests.support.failures",)\n')
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f"import pathlib\nimport pytest\nfrom tests.support.waiting import StageTimeoutError, wait_until\n{text}\n"
    )
    return folder


def run(folder: Path, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a module of the tests in the folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "OUTBOX_"))}
    environ = {**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), **environ}
    command = (sys.executable, "-m", *command)
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("case", CASES)
def test_only_a_wait_that_ran_out_runs_once_more(tmp_path: Path, case: str) -> None:
    text, code, runs_again = CASES[case]
    result = run(project(tmp_path, text), "tests.support.second_try", sys.executable, "-m", "pytest", "-q")
    assert result.returncode == code, result.stdout + result.stderr
    assert result.stdout.count("run once more, alone") == runs_again, result.stdout


def test_the_second_run_is_named_in_the_last_lines(tmp_path: Path) -> None:
    command = ("tests.support.second_try", sys.executable, "-m", "pytest", "-q")
    last = run(project(tmp_path, PASSES_LATER), *command).stdout.splitlines()[-6:]
    assert any("test_it.py::test_late PASSED" in line for line in last), last
    assert "1 passed" in last[-1]


def test_a_fault_that_did_not_come_about_is_tried_once_more(tmp_path: Path) -> None:
    text = PASSES_LATER.replace('wait_until(lambda: before, "it ran before", seconds=0.01)', STAGE)
    folder = project(tmp_path, text, "tests/faults/test_it.py")
    result = run(folder, "tests.support.second_try", sys.executable, "-m", "pytest", "-q")
    assert (result.returncode, result.stdout.count("once more")) == (0, 1), result.stdout


def test_a_test_that_xdist_ran_in_a_group_is_found_again(tmp_path: Path) -> None:
    text = PASSES_LATER.replace("def ", "@pytest.mark.xdist_group('one at a time')\ndef ", 1)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "1", "--dist", "loadgroup")
    result = run(project(tmp_path, text), "tests.support.second_try", *command)
    assert (result.returncode, result.stdout.count("once more")) == (0, 1), result.stdout + result.stderr


def test_a_wait_of_a_fault_test_is_its_verdict(tmp_path: Path) -> None:
    folder = project(tmp_path, PASSES_LATER, "tests/faults/test_it.py")
    result = run(folder, "tests.support.second_try", sys.executable, "-m", "pytest", "-q")
    assert (result.returncode, result.stdout.count("once more")) == (1, 0), result.stdout


def test_a_run_that_ends_without_a_list_is_not_repeated(tmp_path: Path) -> None:
    result = run(tmp_path, "tests.support.second_try", sys.executable, "-c", "raise SystemExit(3)")
    assert (result.returncode, result.stdout) == (3, "")


def test_a_burn_in_lists_what_failed_in_which_order(tmp_path: Path) -> None:
    text = "@pytest.mark.parametrize('n', range(20))\ndef test_n(n):\n    print(f'n={n}')\n    assert n != 7"
    command = (sys.executable, "-m", "pytest", "-q", "-s")
    options = ("--runs", "2", "--seed", "5")
    result = run(project(tmp_path, text), "tests.support.burn_in", *options, *command)
    assert result.returncode == 1
    listed = result.stdout.partition("seed 5.0")[2]
    assert listed.count("RED") == 2
    assert listed.count("other: test_it.py::test_n[7]") == 2
    orders = [
        [line for line in run(tmp_path, "pytest", "-q", "-s", **{ORDER: seed}).stdout.split() if "n=" in line]
        for seed in ("5.0", "5.0", "5.1")
    ]
    assert orders[0] == orders[1] != orders[2], "a seed gives its order again"


def test_what_failed_is_noted_by_its_node_id(tmp_path: Path) -> None:
    noted = tmp_path / "noted.json"
    run(project(tmp_path, PASSES_LATER), "pytest", "-q", **{FILE: str(noted)})
    assert json.loads(noted.read_text()) == {"test_it.py::test_late": "wait"}
