"""
The example history of the demo: three months of scores as data, with dates that end today.

All chains begin with `example-` and all sessions have the label `data: example`. No session was run and no model judged:
the numbers were drawn once, with known changes at the days below. `history.json.xz` holds the rows by table, and the
sessions with suspicious text, which can be read. `make history` stores it anew after a change of the tables.
"""

import asyncio
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import asyncpg

from tarsy_scoring.analytics.recount import COUNT
from tarsy_scoring.postgres import migrate
from tarsy_scoring.telemetry.stopping import closing
from tarsy_scoring_lab.postgres import EmbeddedPostgres

DAYS = 90
WHOLE = timedelta(days=DAYS)
JUDGE_DAY = 40  # all chains get a milder judge
PROMPT_DAY = 55  # the agents of `PAYMENTS` get a better prompt
TOOL_DAY = 62  # `BUILT_TOOL` is there, in `KUBERNETES`
LOST_DAY = DAYS - 6  # agents in `DATABASES` lose `LOST_TOOL`
PAYMENTS, KUBERNETES, DATABASES = "example-payments", "example-kubernetes", "example-databases"
BUILT_TOOL, WANTED_TOOL, LOST_TOOL = "get_previous_logs", "search_traces", "sql_query"
# The configuration of the chains; those of the demo's own sessions have the gates of its `defaults`.
CHAINS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"pass_threshold": 60, "gates": []} for name in (PAYMENTS, KUBERNETES)},
    **{
        name: {"gates": []}
        for name in (DATABASES, "example-network", "example-batch-jobs", "example-certificates")
    },
}

# In the order that foreign keys require. Daily counts are not stored: they follow from the rows.
TABLES = (
    "sessions",
    "scoring_criteria",
    "session_scores",
    "judge_turns",
    "score_missing_tools",
    "score_alternative_approaches",
    "score_alternative_approach_steps",
    "score_labels",
    "tool_states",
    "anchor_sessions",
    "drift_findings",
)
COLUMNS = """
SELECT a.attname, a.atttypid::regtype::text FROM pg_attribute a
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped AND a.attidentity = '' ORDER BY a.attnum
"""


@dataclass(frozen=True, slots=True)
class Filled:
    """
    What a history holds, for the tour.

    Args:
        beginning: Midnight (UTC) of the first day.
        sessions: Those with suspicious text, as session files have them, for the timeline source.
    """

    scores: int
    beginning: datetime
    sessions: Sequence[dict[str, Any]]

    def day(self, number: int) -> str:
        """The date of a day of the history."""
        return f"{self.beginning + timedelta(days=number):%Y-%m-%d}"

    def tour(self) -> dict[str, str]:
        """Six paths of pages over the example sessions and the history, each with what the page shows."""
        judge, prompt, tool, lost = (self.day(day) for day in (JUDGE_DAY, PROMPT_DAY, TOOL_DAY, LOST_DAY))
        return {
            "/?q=demo-": "the ten sessions judged just now; open one: every reason cites an entry of its timeline",
            "/week": f"{DATABASES} got worse: its agents have had no {LOST_TOOL} since {lost}, and judges miss it",
            f"/trends?chain={PAYMENTS}": (
                f"totals rose twice: a milder judge took over on {judge} (dashed line), agents got prompt v2 on {prompt}"
            ),
            f"/drift?chain={PAYMENTS}": (
                "both causes, separated by 40 anchors: the judge changed, and the agents changed about when v2 came"
            ),
            "/missing-tools": (
                f"{BUILT_TOOL} was built on {tool} and is hardly asked for since; {WANTED_TOOL} is what to build next"
            ),
            "/review": "label the ten sessions judged just now, one after the other; below, how far people agreed with judges",
        }


async def fill(url: str, now: datetime) -> Filled:
    """
    Store the history in a migrated database, shifted by whole days so that it ends at the midnight before `now`.

    Raises:
        asyncpg.PostgresError: The stored rows do not fit the tables; run `make history`.
    """
    stored = read()
    beginning = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=DAYS)
    shift = (beginning.date() - date.fromisoformat(stored["beginning"])).days
    for finding in stored["tables"]["drift_findings"]:
        began_at = datetime.fromisoformat(finding["began_at"])
        named, shifted = (f"{at:%Y-%m-%d %H:%M}" for at in (began_at, began_at + timedelta(days=shift)))
        finding["meaning"] = [sentence.replace(named, shifted) for sentence in finding["meaning"]]
    connection = await asyncpg.connect(url)
    async with closing(connection):
        async with connection.transaction():
            for table in TABLES:
                await _insert(connection, table, stored["tables"][table], shift)
            for count in COUNT:
                await connection.execute(
                    count.replace("{schema}", "public"), [beginning], [beginning + WHOLE]
                )
        await connection.execute("ANALYZE")  # without statistics PostgreSQL plans for empty tables
    return Filled(len(stored["tables"]["session_scores"]), beginning, stored["sessions"])


def read() -> dict[str, Any]:
    """The stored history: `beginning` (a date), `tables` (rows by table) and `sessions`."""
    stored: dict[str, Any] = json.loads(lzma.decompress(_place().read_bytes()))
    return stored


async def _insert(connection: Any, table: str, rows: Sequence[Mapping[str, Any]], shift_days: int) -> None:
    """Insert rows; a column that a row lacks gets the default."""
    given = {name for row in rows for name in row}
    columns = [(name, kind) for name, kind in await connection.fetch(COLUMNS, table) if name in given]
    shifted = {"timestamp with time zone": " + make_interval(days => $2)", "date": " + $2::int"}
    names = ", ".join(name for name, _ in columns)
    values = ", ".join(name + shifted.get(kind, "") for name, kind in columns)
    await connection.execute(
        f"INSERT INTO {table} ({names}) SELECT {values} FROM jsonb_populate_recordset(NULL::{table}, $1), "
        "(SELECT $2::int) AS shift",
        json.dumps(rows),
        shift_days,
    )


def _place() -> Path:
    return Path(str(files(__package__).joinpath("history.json.xz")))


async def renew() -> None:
    """Store the history as the tables of this version hold it."""
    async with EmbeddedPostgres() as server:
        await asyncio.to_thread(migrate.migrate, server.url)
        stored = read()
        end = datetime.fromisoformat(stored["beginning"]).replace(tzinfo=UTC) + WHOLE
        await fill(server.url, end)
        connection = await asyncpg.connect(server.url)
        async with closing(connection):
            for table in TABLES:
                names = ", ".join(name for name, _ in await connection.fetch(COLUMNS, table))
                rows = f"SELECT jsonb_agg(to_jsonb(t)) FROM (SELECT {names} FROM {table}) t"
                stored["tables"][table] = json.loads(await connection.fetchval(rows))
    text = json.dumps(stored, separators=(",", ":"), sort_keys=True)
    _place().write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    asyncio.run(renew())
