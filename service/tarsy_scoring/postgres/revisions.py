"""The revisions of the tables, read from the names of their files, and the check that a database has them."""

import re
from pathlib import Path
from typing import NamedTuple

from tarsy_scoring.errors import StartRefused
from tarsy_scoring.postgres.database import Connection

VERSION_TABLE = "tarsy_scoring_version"
_FILE_NAME = re.compile(r"(?P<number>\d{4})_(?P<phase>pre|post)_\w+\.py")


class Revision(NamedTuple):
    """`phase` is `pre` (additive, before a rollout) or `post` (clean-up, after it)."""

    number: str
    phase: str


def revisions() -> list[Revision]:
    """All revisions of this version, oldest first."""
    # By the names of the files: Alembic would load every file, and SQLAlchemy with it.
    names = sorted(path.name for path in (migrations_dir() / "versions").iterdir())
    return [Revision(*found.groups()) for name in names if (found := _FILE_NAME.fullmatch(name))]


async def stored_revision(connection: Connection, schema: str) -> str | None:
    """The revision that the database stores; None before the first migration."""
    table = f'"{schema}".{VERSION_TABLE}'
    if not await connection.fetchval("SELECT to_regclass($1)", table):
        return None
    stored: str | None = await connection.fetchval(f"SELECT version_num FROM {table}")
    return stored


async def check_migrated(connection: Connection, schema: str) -> None:
    """
    Check that the database has every `pre` revision of this version.

    An unknown revision is a newer one: during a rollout the old version keeps working.

    Raises:
        StartRefused: A revision is missing; the message has the command to run.
    """
    stored = await stored_revision(connection, schema)
    known = revisions()
    if stored is not None and stored not in {r.number for r in known}:
        return
    lacking = [r.number for r in known if r.phase == "pre" and (stored is None or r.number > stored)]
    if lacking:
        raise StartRefused(
            f"the database is not migrated (schema {schema!r} lacks {', '.join(lacking)}); run: "
            "tarsy-scoring migrate"
        )


def migrations_dir() -> Path:
    """Folder of the migrations: inside an installed package, or beside the sources."""
    packaged = Path(__file__).parents[1] / "migrations"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "migrations"
