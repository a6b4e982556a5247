"""A database with many rows, and the plans that PostgreSQL chooses on it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg

from builders import connected, open_scoring
from infrastructure import Postgres, fresh_database, run_apart
from tarsy_scoring.analytics.recount import mark_all, recount_all


@contextmanager
def filled_database(postgres: Postgres, template: str, statements: str) -> Iterator[str]:
    """A migrated database with the rows of these statements and fresh statistics; dropped afterwards."""

    async def fill(url: str) -> None:
        async with connected(url) as connection:
            await connection.execute(statements)
            await connection.execute("ANALYZE")
            async with open_scoring(url) as scoring:
                await mark_all(scoring.database)
                await recount_all(scoring.database)
            # ANALYZE sizes its sample by the largest statistics target, so this target makes it read the whole
            # table. With a smaller sample the planner sometimes chooses another plan.
            await connection.execute("ALTER INDEX sessions_by_prefix ALTER COLUMN 1 SET STATISTICS 1000")
            await connection.execute("VACUUM ANALYZE")

    with fresh_database(postgres, template) as url:
        run_apart(fill(url))
        yield url


Plan = list[dict[str, Any]]


async def plan_of(connection: asyncpg.Connection, statement: str, arguments: str, *, generic: bool = False) -> Plan:
    """
    The nodes of the plan of a statement.

    Args:
        arguments: As SQL, separated by commas.
        generic: The plan that PostgreSQL may choose after some runs, when it no longer looks at the arguments.
    """
    async with connection.transaction():
        await connection.execute(f"SET LOCAL plan_cache_mode = force_{'generic' if generic else 'custom'}_plan")
        await connection.execute(f"PREPARE it AS {statement.replace('{schema}', 'public')}")
        [[plan]] = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE it{f'({arguments})' if arguments else ''}")
        await connection.execute("DEALLOCATE it")
    return nodes_of(plan)


def nodes_of(plan: Any) -> Plan:
    """Flatten the answer of `EXPLAIN (FORMAT JSON)` into the nodes of the plan."""

    def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield node
        for child in node.get("Plans", ()):
            yield from walk(child)

    return [*walk((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])]


def scanned(nodes: Plan) -> set[str]:
    """The tables that are read from end to end."""
    return {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"}


def indexes(nodes: Plan) -> set[str]:
    """The indexes that are used."""
    arbiters = {index for node in nodes for index in node.get("Conflict Arbiter Indexes", ())}
    return arbiters | {node["Index Name"] for node in nodes if "Index Name" in node}


async def buffers_of(connection: asyncpg.Connection, statement: str, arguments: str = "") -> int:
    """
    The pages that a statement looks at when it is executed. Its changes are undone.

    Args:
        arguments: As SQL, separated by commas.
    """
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(f"PREPARE it AS {statement.replace('{schema}', 'public')}")
    execute = f"EXECUTE it{f'({arguments})' if arguments else ''}"
    [[plan]] = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {execute}")
    await connection.execute("DEALLOCATE it")
    await transaction.rollback()
    root = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])
