"""`migrate`: brings the tables to the newest revision, or down to an older one."""

from typing import Any

import click

from tarsy_scoring.commands.shared import json_option, print_either, settings_of_environment


@click.command()
@click.option("--phase", type=click.Choice(["pre", "post"]), help="`pre`: stop before the first clean-up.")
@click.option("--down", metavar="REV", help="Go down to this revision; `base` removes tables and scores.")
@json_option
def migrate(phase: Any, down: str | None, as_json: bool) -> None:
    """
    Create the tables, or migrate them to the newest revision.

    They are in the database of SCORING_DATABASE_URL. Run `--phase pre` before a rollout and `--phase post`
    after it. Safe to repeat and to run concurrently. --json lists the revisions as `applied` or `undone`.
    """
    from tarsy_scoring.postgres.migrate import migrate as migrate_tables

    if phase and down:
        raise click.UsageError("--phase and --down exclude each other")
    settings = settings_of_environment()
    done = migrate_tables(settings.require_database(), settings.database_schema, phase=phase, down=down)
    what = "undone" if down else "applied"
    text = f"{what}: {', '.join(done)}" if done else "nothing to do: the tables are up to date"
    print_either({what: done}, [text], as_json=as_json)
