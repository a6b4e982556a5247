"""Schema migrations: up in two phases, down to a revision, and the check at start."""

import asyncio
import logging
from itertools import takewhile
from typing import Literal

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.exc import SQLAlchemyError

from tarsy_scoring.errors import ConfigurationError, StartRefused
from tarsy_scoring.postgres.failures import DRIVER_ERRORS, misconfigured, why_away
from tarsy_scoring.postgres.revisions import Revision, migrations_dir, revisions, stored_revision
from tarsy_scoring.postgres.url import place_of
from tarsy_scoring.telemetry.stopping import closing

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
    Blocks and runs a separate event loop, so async code must call it in a thread. A database at an unknown
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
    known = revisions()
    numbers = [r.number for r in known]
    if down not in {None, "base", *numbers}:
        raise ConfigurationError(f"migrate --down {down}: there is no such revision")
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    config.attributes.update(url=database_url, schema=schema)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    place = place_of(database_url)
    try:
        before = asyncio.run(_read_revision(database_url, schema))
        if down is not None:
            command.downgrade(config, down)
        elif (before is None or before in numbers) and (
            wanted := _pending(known[_height(numbers, before) :], phase)
        ):
            command.upgrade(config, wanted[-1].number)
        after = asyncio.run(_read_revision(database_url, schema))
    except asyncpg.ClientConfigurationError as error:
        raise misconfigured(database_url, error) from error
    except (OSError, asyncpg.PostgresConnectionError) as error:
        raise StartRefused(f"cannot migrate the database at {place}: {why_away(error)}") from error
    except (*DRIVER_ERRORS, SQLAlchemyError, CommandError) as error:
        raise StartRefused(f"cannot migrate the database at {place}: {error}") from error
    low, high = sorted((_height(numbers, before), _height(numbers, after)))
    return numbers[low:high]


def _pending(revisions: list[Revision], phase: Phase | None) -> list[Revision]:
    """The revisions that this phase applies: `pre` stops before the first `post`."""
    return list(takewhile(lambda r: not (phase == "pre" and r.phase == "post"), revisions))


async def _read_revision(database_url: str, schema: str) -> str | None:
    connection = await asyncpg.connect(database_url, timeout=10, statement_cache_size=0)
    async with closing(connection):
        return await stored_revision(connection, schema)


def _height(numbers: list[str], revision: str | None) -> int:
    """Number of revisions that a database at `revision` has; 0 for None and for an unknown one."""
    return numbers.index(revision) + 1 if revision in numbers else 0
