"""`outbox key`: the keys of encrypted bodies. Destroying the keys of a subject erases its bodies wherever they are."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from outbox_relay.cli import output
from outbox_relay.cli.options import CommandGroup, dsn_option, json_option, limit_option
from outbox_relay.database import connections, schema
from outbox_relay.operations import subject_keys
from outbox_relay.operations.subject_keys import SubjectKey
from outbox_relay.text import formatting
from outbox_relay.text.errors import OperatorError, OptionError

REMEMBERED = (
    "processes that have read a key may use it until their `cache_seconds` have passed (60 s by default)"
)
COPIES = "backups, the write-ahead log and, until it is vacuumed, the table itself have the wrapped key in old versions"


@click.group(cls=CommandGroup)
def key() -> None:
    """Keys of encrypted bodies, one per subject at a time.

    The page is docs/how-to/personal-data.md.

    Wrapped keys are rows of outbox.subject_key. The master key that opens them is not in the database.
    """


def _subject(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not 1 <= len(value) <= 255:
        raise click.BadParameter("a subject has 1 to 255 characters", ctx, param)
    return value


_subject_argument = click.argument("subject", callback=_subject)


@key.command("ls")
@click.option("--subject", metavar="TEXT", callback=_subject, help="The keys of this subject, all of them.")
@limit_option
@dsn_option
@json_option
def ls(*, subject: str | None, limit: int, dsn: str, as_json: bool) -> None:
    """List keys: those of a subject, or the latest.

    A destroyed key has no subject any more; bodies name it by its id.
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        found = (
            subject_keys.latest(conn, limit) if subject is None else subject_keys.of_subject(conn, subject)
        )
    if as_json:
        output.emit_json(_documents(found))
    elif not found:
        click.echo("no keys" if subject is None else f"no key of subject {formatting.printable(subject)}")
    else:
        output.table(
            ["id", "subject", "state", "master key", "created", "destroyed", "by"],
            [
                (
                    one.id,
                    one.subject and formatting.printable(one.subject),
                    one.state,
                    one.master_id,
                    one.created_at,
                    one.destroyed_at,
                    one.destroyed_by,
                )
                for one in found
            ],
            keep=("id", "subject", "state"),
        )


@key.command()
@_subject_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@dsn_option
@json_option
def destroy(*, subject: str, yes: bool, dsn: str, as_json: bool) -> None:
    """Destroy all keys of a subject: its bodies in PostgreSQL, Kafka and the warehouse can never be read again.

    Consumers discard the messages. New messages of the subject get a new key. Repeating the command is safe; repeat it
    after a backup was restored. Needs the role outbox_operator.

    \b
      outbox key destroy customer/4711
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        found = subject_keys.of_subject(conn, subject)
        shown = formatting.printable(subject)
        if found and not yes:
            if as_json:
                raise click.UsageError("--json does not ask: give --yes as well")
            many = formatting.many(len(found), "key")
            click.confirm(
                f"destroy {many} of {shown}? What they encrypted is lost for ever", abort=True, err=True
            )
        destroyed = subject_keys.destroy(conn, subject)
    if as_json:
        output.emit_json({"subject": subject, "destroyed": _documents(destroyed)})
        return
    if not destroyed:
        click.echo(f"subject {shown} has no key: nothing of it can be read, or it was never encrypted")
        return
    click.echo(f"destroyed {formatting.many(len(destroyed), 'key')} of {shown}:")
    for one in destroyed:
        click.echo(f"  {one.id}")
    click.echo(f"note: {REMEMBERED}; {COPIES}", err=True)


@key.command()
@_subject_argument
@dsn_option
@json_option
def renew(*, subject: str, dsn: str, as_json: bool) -> None:
    """Let new bodies of a subject get a new key; the present one goes on reading the old bodies.

    One key must not encrypt more than 4,294,967,296 bodies: renew that of a topic which is one subject in time.
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        retired = subject_keys.renew(conn, subject)
    if as_json:
        output.emit_json({"subject": subject, "retired": _documents(retired)})
        return
    shown = formatting.printable(subject)
    click.echo(
        f"retired key {retired[0].id} of {shown}; the next message makes a new one"
        if retired
        else f"subject {shown} has no current key; the next message makes one"
    )


@key.command()
@click.option(
    "--master-key",
    "reference",
    required=True,
    metavar="file:PATH|env:NAME",
    envvar="OUTBOX_MASTER_KEY",
    show_envvar=True,
    help="Lines of id:key, the new master key first, then those that wrapped the keys.",
)
@dsn_option
@json_option
def rewrap(*, reference: str, dsn: str, as_json: bool) -> None:
    """Wrap all keys by the first master key, so that the others can be taken away; no body is touched.

    Give all processes the new master key before this command, and take the old one away from them after it. It may be
    repeated, and goes on where it was interrupted.
    """
    try:
        from outbox.codecs.errors import MasterKeyError  # noqa: PLC0415  (needs the extra `encryption`)
        from outbox.codecs.master_keys import MasterKeys  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise OperatorError(str(error)) from None
    try:
        master = MasterKeys.read(reference)
    except MasterKeyError as error:
        raise OptionError(f"--master-key: {error}") from None
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        done = subject_keys.rewrap(conn, master)
        masters = subject_keys.masters(conn)
    if as_json:
        output.emit_json({"master_key": master.current, "rewrapped": done, "keys_by_master_key": masters})
        return
    click.echo(f"wrapped {formatting.many(done, 'key')} again by master key {master.current}")
    others = {name: count for name, count in masters.items() if name != master.current}
    for name, count in others.items():
        click.echo(
            f"{formatting.many(count, 'key')} were wrapped by {formatting.printable(name)} meanwhile; some "
            "process has that master key first: change it, then repeat this command",
            err=True,
        )


def _documents(keys: list[SubjectKey]) -> list[dict[str, Any]]:
    return [{**asdict(one), "state": one.state} for one in keys]
