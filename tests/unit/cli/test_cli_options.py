"""The command line itself: suggestions, environment twins, missing servers, and what loading it costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from outbox_relay.cli.main import main
from outbox_relay.cli.options import Command, CommandGroup, advice
from outbox_relay.text.errors import OperatorError
from tests.support.outbox_command import outbox, succeed


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command below a group, with the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["statsu"], "Did you mean 'status'?"),
        (["db", "upgrad"], "Did you mean 'upgrade'?"),
        (["topic", "regsiter"], "Did you mean 'register'?"),
        (["message", "shwo"], "Did you mean 'show'?"),
        (["db", "xyzzy"], "Commands: upgrade, check, sql, debezium, partitions."),
        (["db", "upgrade", "--dns", "x"], "Did you mean '--dsn'?"),
        (["message", "ls", "--topics", "x"], "Did you mean '--topic'?"),
        (["status", "--watches"], "Did you mean '--watch'?"),
    ],
)
def test_a_wrong_word_is_refused_with_the_nearest(arguments: list[str], suggestion: str) -> None:
    ran = outbox(*arguments)
    assert ran.code == 2
    assert suggestion in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["db", "check"],
        ["db", "upgrade"],
        ["db", "partitions"],
        ["status"],
        ["message", "ls"],
        ["topic", "ls"],
    ],
)
def test_a_missing_database_says_how_to_name_one(arguments: list[str]) -> None:
    ran = outbox(*arguments)
    assert ran.code == 2
    for way in ("--dsn", "OUTBOX_DSN", 'outbox up; eval "$(outbox env)"'):
        assert way in ran.err


def test_a_missing_broker_says_how_to_name_one() -> None:
    ran = outbox("topic", "register", "orders", "--dsn", "postgresql://h/x")
    assert ran.code == 2
    for way in ("--bootstrap-servers", "OUTBOX_BOOTSTRAP_SERVERS", "outbox up"):
        assert way in ran.err


def test_every_option_has_an_environment_twin() -> None:
    missing = []
    for path, command in commands(main):
        context = click.Context(main, info_name="outbox", auto_envvar_prefix="OUTBOX")
        for word in path:
            context = click.Context(command, info_name=word, parent=context)
        missing += [
            f"{' '.join(path)} {parameter.opts}"
            for parameter in command.params
            if isinstance(parameter, click.Option) and not parameter.is_eager
            if not (parameter.envvar or (parameter.allow_from_autoenv and context.auto_envvar_prefix))
        ]
    assert not missing
    assert main.context_settings["auto_envvar_prefix"] == "OUTBOX"


def test_an_option_can_be_given_by_its_environment_twin() -> None:
    ran = outbox("message", "ls", OUTBOX_DSN="postgresql://h/x", OUTBOX_MESSAGE_LS_LIMIT="none")
    assert ran.code == 2
    assert "OUTBOX_MESSAGE_LS_LIMIT" in ran.err or "--limit" in ran.err


def test_every_command_explains_itself() -> None:
    for path, command in commands(main):
        ran = outbox(*path, "--help")
        assert ran.code == 0
        assert command.help, path


@pytest.mark.parametrize(
    ("arguments", "allowed"), [(["--help"], set()), (["--version"], set()), (["env", "--help"], {"psycopg"})]
)
def test_help_and_env_load_no_broker_client_and_no_migrations(
    arguments: list[str], allowed: set[str]
) -> None:
    code = (
        "import sys\nfrom outbox_relay.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "heavy = {'psycopg', 'confluent_kafka', 'alembic', 'sqlalchemy', 'pandas', 'numpy'} & set(sys.modules)\n"
        f"heavy -= set({sorted(allowed)!r})\n"
        "sys.exit(f'loaded: {sorted(heavy)}' if heavy else 0)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_a_refusal_is_one_message_and_a_defect_keeps_its_traceback() -> None:
    @click.group(cls=CommandGroup)
    def group() -> None: ...

    @group.command()
    def refuse() -> None:
        raise OperatorError("cannot\nrun: something")

    @group.command()
    def defect() -> None:
        raise RuntimeError("a bug")

    assert isinstance(refuse, Command)
    with pytest.raises(click.ClickException, match="cannot"):
        group.main(["refuse"], standalone_mode=False)
    with pytest.raises(RuntimeError, match="a bug"):
        group.main(["defect"], standalone_mode=False)


def test_an_error_that_a_user_cannot_repair_is_not_explained_away() -> None:
    assert advice(RuntimeError("a bug")) is None
    assert advice(OperatorError("do this")) == "do this"


def test_no_help_shows_a_mark_of_its_formatting() -> None:
    assert not [path for path, command in commands(main) if "\\b" in outbox(*path, "--help").out]


def test_help_is_a_command_too() -> None:
    assert succeed("help").out == succeed("--help").out
    assert succeed("help", "topic", "create").out == succeed("topic", "create", "--help").out
    assert "Did you mean 'topic'?" in outbox("help", "topci").err


def test_a_downgrade_is_not_taken_for_an_upgrade() -> None:
    ran = outbox("db", "downgrade")
    assert (ran.code, "a schema is not taken back" in ran.err, "upgrade'?" in ran.err) == (2, True, False)
