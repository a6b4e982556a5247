"""Schema migrations: up in two phases, down to a revision, and the check at start."""

import asyncio
import logging
from typing import Literal

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.exc import SQLAlchemyError

from tarsy_scoring.errors import ConfigurationError, StartRefused
from tarsy_scoring.postgres.failures import misconfigured, why_away
from tarsy_scoring.postgres.revisions import VERSION_TABLE, migrations_dir
from tarsy_scoring.postgres.url import place_of

Phase = Literal["pre", "post"]


def migrate(
    database_url: str, schema: str = "public", *, phase: Phase | None = None, down: str | None = None
) -> list[str]:
    """
    Upgrade the tables to the newest revision, or downgrade them to `down` (`base` removes all of them).

    Each revision is one transaction, so an interrupted run can be continued. Running workers wait for at most
    a few seconds: indexes of tables in use are built outside of transactions, and a revision that is blocked
    by a long transaction is retried for ten minutes.

    Idempotent, and safe in several processes at the same time; within a process only one call at a time.
    Blocks and runs its own event loop, so async code must call it in a thread. A database at an unknown
    revision belongs to a newer version and is left alone.

    Args:
        phase: `pre` stops before the first pending `post` revision (run before a rollout); `post` and
            None upgrade to the newest.

    Returns:
        The revisions applied (or undone), in order.

    Raises:
        StartRefused: The database cannot be reached or refuses a statement.
        ConfigurationError: There is no such revision, or the URL can never work.
    """
    config = _config(database_url, schema)
    script = ScriptDirectory.from_config(config)
    known = {s.revision for s in script.walk_revisions()}
    if down is not None and down not in known | {"base"}:
        raise ConfigurationError(f"migrate --down {down}: there is no such revision")
    try:
        before = _stored_revision(config)
        if down is not None:
            command.downgrade(config, down)
        elif before is None or before in known:
            target = _target(_pending(script, before), phase)
            if target is not None:
                command.upgrade(config, target)
        after = _stored_revision(config)
    except asyncpg.ClientConfigurationError as error:
        raise misconfigured(database_url, error) from error
    except (OSError, asyncpg.PostgresConnectionError) as error:
        raise StartRefused(f"cannot migrate the database at {place_of(database_url)}: {why_away(error)}") from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError, SQLAlchemyError, CommandError) as error:
        raise StartRefused(f"cannot migrate the database at {place_of(database_url)}: {error}") from error
    order = [s.revision for s in reversed(list(script.walk_revisions()))]
    low, high = sorted((_height(order, before), _height(order, after)))
    return order[low:high]


def _config(database_url: str, schema: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    config.attributes["url"] = database_url
    config.attributes["schema"] = schema
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return config


def _stored_revision(config: Config) -> str | None:
    """The revision stored in the database; creates nothing."""

    async def read() -> str | None:
        schema = config.attributes["schema"]
        connection = await asyncpg.connect(config.attributes["url"], timeout=10, statement_cache_size=0)
        try:
            if not await connection.fetchval("SELECT to_regclass($1)", f'"{schema}".{VERSION_TABLE}'):
                return None
            stored = await connection.fetchval(f'SELECT version_num FROM "{schema}".{VERSION_TABLE}')
            return str(stored) if stored else None
        finally:
            await connection.close()

    return asyncio.run(read())


def _pending(script: ScriptDirectory, stored: str | None) -> list[Script]:
    """Revisions after `stored`, oldest first."""
    pending = []
    for revision in script.walk_revisions():
        if revision.revision == stored:
            break
        pending.append(revision)
    return pending[::-1]


def _target(pending: list[Script], phase: Phase | None) -> str | None:
    target = None
    for revision in pending:
        if phase == "pre" and _phase(revision) == "post":
            break
        target = revision.revision
    return target


def _phase(revision: Script) -> str:
    return str(revision.module.phase)


def _height(order: list[str], revision: str | None) -> int:
    return order.index(revision) + 1 if revision in order else 0
