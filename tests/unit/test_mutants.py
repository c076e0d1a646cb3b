"""The list of mutants is one that can be run: each text stands in its file once, and its tests are there."""

from __future__ import annotations

from pathlib import Path

from tests.support.mutants import Mutant, fault, mutants


def test_each_mutant_changes_one_place_and_has_tests() -> None:
    assert [told for mutant in mutants() if (told := fault(mutant))] == []


def test_the_promises_have_sixty_mutants_at_least() -> None:
    listed = mutants()
    assert len(listed) >= 60
    assert len({mutant.guard for mutant in listed}) == len(listed), "a guard has one name"
    assert all(mutant.old != mutant.new for mutant in listed)


def test_an_entry_that_went_stale_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("one two one")
    (tmp_path / "test_a.py").touch()
    told = [
        fault(Mutant("g", file, old, "", tests), tmp_path)
        for file, old, tests in [
            ("a.sql", "one", ("test_a.py",)),
            ("b.sql", "one", ("test_a.py",)),
            ("a.sql", "two", ("test_b.py::test",)),
            ("a.sql", "two", ()),
            ("a.sql", "two", ("test_a.py::test",)),
        ]
    ]
    assert told == [
        "a.sql has its text 2 times, not once",
        "b.sql has its text 0 times, not once",
        "['test_b.py::test'] are no tests",
        "[] are no tests",
        None,
    ]


def test_no_mutant_changes_a_function_that_a_later_migration_makes_again(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").touch()
    (tmp_path / "0001_a.sql").write_text(
        "CREATE FUNCTION a(text)\nfirst;\nCREATE FUNCTION a(text, x integer)\nsecond;\nCREATE FUNCTION b()\nthird;\n"
    )
    (tmp_path / "0002_b.sql").write_text("CREATE OR REPLACE FUNCTION a(text, x integer)\nother;\n")
    told = [
        fault(Mutant("g", file, old, "", ("test_a.py",)), tmp_path)
        for file, old in [
            ("0001_a.sql", "first"),
            ("0001_a.sql", "second"),
            ("0001_a.sql", "third"),
            ("0002_b.sql", "other"),
        ]
    ]
    assert told == [None, "0001_a.sql: 0002_b.sql makes a(text, x integer) again", None, None]
