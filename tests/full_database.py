"""A database with many rows, for tests that read plans."""

from collections.abc import Iterator
from contextlib import contextmanager

from builders import connected
from infrastructure import Postgres, fresh_database, run_apart


@contextmanager
def filled_database(postgres: Postgres, template: str, statements: str) -> Iterator[str]:
    """A migrated database with what the statements put in, and fresh statistics; gone afterwards."""

    async def fill(url: str) -> None:
        async with connected(url) as connection:
            await connection.execute(statements)
            # As every column is counted by the sample of the finest, this one makes it the whole table: by a sample,
            # now and then, the planner would guess otherwise.
            await connection.execute("ALTER INDEX sessions_by_prefix ALTER COLUMN 1 SET STATISTICS 1000")
            await connection.execute("VACUUM ANALYZE")

    with fresh_database(postgres, template) as url:
        run_apart(fill(url))
        yield url
