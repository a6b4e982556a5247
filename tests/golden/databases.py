"""The golden artefacts that need PostgreSQL: plans of hot statements on full tables."""

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from typing import Any

import asyncpg

from builders import connected
from full_database import filled_database
from infrastructure import Infrastructure, Postgres, run_apart, running_postgres

# The sample of ANALYZE then holds every row of the largest table, so statistics and plans do not vary.
WHOLE_SAMPLE = "SET default_statistics_target = 1000;"
# Both plans of a prepared statement: the one for given arguments, and the generic one.
CACHE_MODES = ("force_custom_plan", "force_generic_plan")


@cache
def _migrated(stack: ExitStack) -> tuple[Postgres, str]:
    """A server and its migrated database. Always the embedded server: plans differ between versions."""
    from tarsy_scoring.postgres.migrate import migrate
    from tarsy_scoring_lab.postgres import create_database

    server = stack.enter_context(running_postgres(Infrastructure(None, None, docker=False)))
    name = f"golden_{uuid.uuid4().hex[:12]}"
    migrate(run_apart(create_database(server.url, name)))
    return server, name


def read_plans(stack: ExitStack) -> dict[str, Any]:
    """By database and statement: the plans as lines, indented by their depth."""
    from integration import test_plans, test_quality_plans
    from quality_rows import filling
    from tarsy_scoring.labels.labels import COUNTED
    from tarsy_scoring.scores.session_list import SESSIONS

    lists = {"newest": SESSIONS["newest"], "best": SESSIONS["score_desc"], "worst": SESSIONS["score_asc"]}
    nothing = ["NULL"] * 14
    filters = {"all": {}, "chain": {0: "'chain-77'"}, "total": {2: "97"}, "prefix": {11: "'session-1234%'"}}
    of_quality = {name: entry[:2] for name, entry in test_quality_plans.STATEMENTS.items()}
    of_quality["labels-of-judge"] = (COUNTED, "NULL, NULL")
    for order, statement in lists.items():
        for name, given in filters.items():
            arguments = ", ".join([*(given.get(n, value) for n, value in enumerate(nothing)), "51"])
            of_quality[f"list-{order}-{name}"] = (statement, arguments)
    queue = {name: entry[:2] for name, entry in test_plans.STATEMENTS.items()}
    few_labels = filling(test_quality_plans.SCORES, 200) + "DELETE FROM score_labels WHERE label_id % 20 <> 0;"
    return {"queue": _plans(stack, test_plans.FILL, queue), "quality": _plans(stack, few_labels, of_quality)}


def _plans(stack: ExitStack, fill: str, statements: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    async def read(url: str) -> dict[str, Any]:
        async with connected(url) as connection:
            return {name: await _explain(connection, *entry) for name, entry in statements.items()}

    with filled_database(*_migrated(stack), fill + WHOLE_SAMPLE) as url:
        found: dict[str, Any] = run_apart(read(url))
    return found


async def _explain(connection: asyncpg.Connection, statement: str, arguments: str) -> dict[str, list[str]]:
    await connection.execute(f"PREPARE it AS {statement.replace('{schema}', 'public')}")
    found = {}
    for mode in CACHE_MODES:
        await connection.execute(f"SET plan_cache_mode = {mode}")
        [[plan]] = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE it{f'({arguments})' if arguments else ''}")
        found[mode] = list(_lines(json.loads(plan)[0]["Plan"]))
    await connection.execute("DEALLOCATE it")
    custom, generic = (found[mode] for mode in CACHE_MODES)
    return {"both": custom} if custom == generic else {"custom": custom, "generic": generic}


def _lines(node: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    shown = ("Node Type", "Operation", "Join Type", "Strategy", "Relation Name", "Index Name", "CTE Name")
    words = [str(node[key]) for key in (*shown, "Subplan Name") if node.get(key) not in (None, "Plain")]
    words += [
        word
        for word, is_so in {
            "backward": node.get("Scan Direction") == "Backward",
            "parallel": node["Parallel Aware"],
        }.items()
        if is_so
    ]
    words += (f"arbiter {index}" for index in node.get("Conflict Arbiter Indexes", ()))
    yield "  " * depth + ", ".join(words)
    for child in node.get("Plans", ()):
        yield from _lines(child, depth + 1)
