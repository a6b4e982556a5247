"""
Decisions of people about missing tools: the state of each tool, and which names are one tool.

Decisions are only appended; the last one about a tool or a name counts.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from tarsy_scoring.analytics.analytics import MOST_SPELLINGS
from tarsy_scoring.audit import audit
from tarsy_scoring.evaluation.tool_names import Tool, merge_spellings, normalise
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.postgres.leader import AdvisoryLock

SaidState = Literal["open", "planned", "built"]

AUTOMATIC = "automatic"
CLOCKS_APART = timedelta(minutes=5)  # tolerated difference between the clock of a caller and ours

# The last decision about each tool. `is_day_given`: a person entered `since`; otherwise it is the time of a
# decision.
LAST_SAID = """
SELECT l.*, NOT EXISTS (SELECT FROM {schema}.tool_states x WHERE x.tool_key = l.tool_key AND x.said_at = l.since)
  AS is_day_given
FROM (SELECT DISTINCT ON (tool_key) tool, tool_key, state, since, said_by, said_at, note
      FROM {schema}.tool_states ORDER BY tool_key, state_id DESC) l
"""

SAID_BEFORE = (
    "SELECT state, since, said_at FROM {schema}.tool_states WHERE tool_key = $1 ORDER BY state_id DESC"
)

LAST_MERGES = """
SELECT DISTINCT ON (name_key) name, name_key, tool, is_automatic, decided_by, decided_at
FROM {schema}.tool_merges ORDER BY name_key, merge_id DESC
"""

# Which of these names ($1) any score requested.
ASKED_FOR = """
SELECT w.name FROM unnest($1::text[]) AS w(name)
WHERE EXISTS (SELECT FROM {schema}.score_missing_tools t WHERE t.tool_name = w.name)
"""

# The names that most scores requested, at most $1.
NAMES = """
SELECT tool_name, count(*) AS scores FROM {schema}.score_missing_tools
GROUP BY tool_name ORDER BY scores DESC, tool_name LIMIT $1
"""

ADD_STATE = """
INSERT INTO {schema}.tool_states (tool, tool_key, state, since, said_by, note)
VALUES ($1, $2, $3, coalesce($4, now()), $5, $6) RETURNING tool, state, since, said_by, said_at, note
"""

ADD_MERGE = """
INSERT INTO {schema}.tool_merges (name, name_key, tool, is_automatic, decided_by) VALUES ($1, $2, $3, $4, $5)
RETURNING name, tool, is_automatic, decided_by, decided_at
"""


# Store names ($1, keys $2) as names of a tool, except those with a decision: one may have been made since the
# names were read.
KEEP_SPELLINGS = """
INSERT INTO {schema}.tool_merges (name, name_key, tool, is_automatic, decided_by)
SELECT n.name, n.key, $3, true, $4 FROM unnest($1::text[], $2::text[]) AS n(name, key)
WHERE NOT EXISTS (SELECT FROM {schema}.tool_merges m WHERE m.name_key = n.key)
"""

# Held while a decision is stored, so that decisions are stored one after the other.
DECISION_LOCK = AdvisoryLock("tarsy-scoring tool decisions")


@dataclass(frozen=True, slots=True)
class Saying:
    """The last decision about the state of a tool."""

    tool: str
    state: SaidState
    since: Annotated[
        datetime,
        Field(description="Start of the state. For `built`, demand is measured from an entered day on."),
    ]
    said_by: str
    said_at: datetime
    note: str | None


@dataclass(frozen=True, slots=True)
class Merge:
    """A name and the tool it belongs to; if both are equal, the name is kept apart."""

    name: str
    tool: str
    is_automatic: Annotated[bool, Field(description="By its spelling, not by a person.")]
    decided_by: str
    decided_at: Annotated[
        datetime | None, Field(description="Null: derived from the spelling and not stored.")
    ]


@dataclass(frozen=True, slots=True)
class Decisions:
    """
    The last decisions, by key of the tool or name.

    Args:
        built: The entered day since which a tool exists or is better than before.
        of_tool: The names merged into each tool.
    """

    said: Mapping[str, Saying]
    built: Mapping[str, date]
    merges: Mapping[str, Merge]
    of_tool: Mapping[str, Sequence[Merge]]

    def merge(self, counts: Mapping[str, int]) -> list[Tool]:
        """Merge spellings to tools, respecting the decisions."""
        decided = {merge.name: merge.tool for merge in self.merges.values()}
        return merge_spellings(counts, decided, {said.tool for said in self.said.values()})

    def merged_into(self, tool: str, names: Iterable[str]) -> list[Merge]:
        """
        The names of a tool other than spellings of its own, each with the decision behind it.

        Args:
            names: The tool's names, as `merge` found them.
        """
        own = normalise(tool)
        found = {
            normalise(name): Merge(name, tool, is_automatic=True, decided_by=AUTOMATIC, decided_at=None)
            for name in names
        }
        direct = self.of_tool.get(own, ())
        # Names without a decision belong to the tool by their spelling, or by that of a name merged into it.
        others = [self.merges.get(key, merge) for key, merge in found.items() if key != own]
        return [*direct, *(merge for merge in others if merge not in direct)]

    def is_merged_away(self, key: str) -> bool:
        """Whether this name was merged into another tool."""
        return key in self.merges and normalise(self.merges[key].tool) != key


async def read_decisions(database: Database) -> Decisions:
    """Read the last decision about each tool and name. Raises: DatabaseAway."""

    async def work(connection: Connection) -> tuple[list[Any], list[Any]]:
        return await connection.fetch(database.sql(LAST_SAID)), await connection.fetch(
            database.sql(LAST_MERGES)
        )

    said, merged = await database.once(work)
    merges: dict[str, Merge] = {row["name_key"]: _of_row(Merge, row) for row in merged}
    of_tool: defaultdict[str, list[Merge]] = defaultdict(list)
    for merge in merges.values():
        of_tool[normalise(merge.tool)].append(merge)
    given = [row for row in said if row["state"] == "built" and row["is_day_given"]]
    built = {row["tool_key"]: row["since"].astimezone(UTC).date() for row in given}
    return Decisions({row["tool_key"]: _of_row(Saying, row) for row in said}, built, merges, of_tool)


def _of_row(kind: type[Any], row: Mapping[str, Any]) -> Any:
    return kind(**{name: row[name] for name in kind.__slots__})


# --- deciding -------------------------------------------------------------------------------------------


def has_come(moment: datetime) -> bool:
    """Whether a time is not in the future, with a tolerance for clock skew."""
    return moment <= datetime.now(UTC) + CLOCKS_APART


class UnknownTool(LookupError):
    """No judge has missed a tool of that name, and no decision names it."""


class OneName(ValueError):
    """A merge of two spellings of one name, which are the same tool anyway."""


async def set_state(
    database: Database,
    name: str,
    state: SaidState,
    *,
    by: str,
    since: datetime | None = None,
    note: str | None = None,
) -> Saying:
    """
    Record the state of a tool. The names that belong to it by their spelling are stored as its own.

    Args:
        name: Any of its names.
        since: Start of the state; for `built`, the time since which the tool exists or is better than before.
            None: see `since_when`.

    Raises:
        UnknownTool: The name is unknown; nothing was stored.
        DatabaseAway: The decision may have been stored.
    """
    [tool] = await _find(database, [name])
    key = normalise(tool.name)

    async def work(connection: Connection) -> Any:
        await DECISION_LOCK.acquire(connection, database.schema)
        await _keep_spellings(database, connection, tool)
        rows = await connection.fetch(database.sql(SAID_BEFORE), key)
        given = since or since_when(state, [(row["state"], row["since"], row["said_at"]) for row in rows])
        await audit.record(database, connection, "tool_state", by=by, tool=tool.name, state=state)
        return await connection.fetchrow(database.sql(ADD_STATE), tool.name, key, state, given, by, note)

    saying: Saying = _of_row(Saying, await database.once(work))
    return saying


def since_when(state: SaidState, before: Sequence[tuple[SaidState, datetime, datetime]]) -> datetime | None:
    """
    The start of a state that is recorded without a day; None: now.

    Recording the same state again keeps its start, and a day entered with `built` holds until another one is
    entered.

    Args:
        before: State, start and time of the earlier decisions about the tool, newest first.
    """
    if before and before[0][0] == state:
        return before[0][1]
    built = next((since for said, since, _ in before if said == state == "built"), None)
    return None if built in {at for _, _, at in before} else built


async def merge_name(
    database: Database,
    name: str,
    tool: str | None,
    *,
    by: str,
) -> Merge:
    """
    Record that a name, in all its spellings, belongs to a tool.

    If the name is that of a tool, the names that belong to this tool by their spelling move along. If both
    names already belong to one tool, the decision confirms it: the one that is not the name of the tool is
    stored as merged into it.

    Args:
        tool: Any of the tool's names; None: keep the name apart from now on.

    Raises:
        UnknownTool: One of the two is unknown; nothing was stored.
        OneName: Both are spellings of one name; nothing was stored.
        DatabaseAway: The decision may have been stored.
    """
    found = await _find(database, [name] if tool is None else [name, tool])
    joined, into = name, name
    if tool is not None:
        into = found[1].name
        if normalise(name) == normalise(into):
            joined = tool
        if normalise(joined) == normalise(into):
            raise OneName(
                "these are two spellings of one name, which are the same tool anyway; give the name of another tool"
            )

    async def work(connection: Connection) -> Any:
        await DECISION_LOCK.acquire(connection, database.schema)
        if tool is not None and normalise(name) == normalise(found[0].name):
            await _keep_spellings(database, connection, found[0])
        await audit.record(database, connection, "tool_merge", by=by, name=joined, into=into)
        merge = joined, normalise(joined), into, False, by
        return await connection.fetchrow(database.sql(ADD_MERGE), *merge)

    merge: Merge = _of_row(Merge, await database.once(work))
    return merge


async def _find(database: Database, names: Sequence[str]) -> list[Tool]:
    """
    Find the tool of each of these names.

    Names beyond the `MOST_SPELLINGS` most requested ones are found in the judge's exact spelling.

    Raises:
        UnknownTool: One of the names is unknown.
        DatabaseAway: See `Database.once`.
    """

    async def requested(connection: Connection) -> dict[str, int]:
        exact = await connection.fetch(database.sql(ASKED_FOR), list(names))
        most = await connection.fetch(database.sql(NAMES), MOST_SPELLINGS)
        return {row["name"]: 0 for row in exact} | {row["tool_name"]: row["scores"] for row in most}

    decisions, counts = await asyncio.gather(read_decisions(database), database.once(requested))
    # In a thread: comparing adversarial names takes long enough to block the event loop.
    return await asyncio.to_thread(_tools_of, counts, decisions, names)


def _tools_of(counts: dict[str, int], decisions: Decisions, names: Iterable[str]) -> list[Tool]:
    decided = [said.tool for said in decisions.said.values()]
    joined = [name for merge in decisions.merges.values() for name in (merge.name, merge.tool)]
    tools = decisions.merge(dict.fromkeys([*decided, *joined], 0) | counts)
    by_key = {normalise(name): tool for tool in tools for name, _ in tool.spellings}
    try:
        return [by_key[normalise(name)] for name in names]
    except KeyError:
        raise UnknownTool("no judge has missed a tool of that name; look it up in the ledger") from None


async def _keep_spellings(database: Database, connection: Connection, tool: Tool) -> None:
    """Store the names that belong to a tool by their spelling as its own, except those with a decision."""
    spellings = {normalise(name): name for name, _ in tool.spellings}
    spellings.pop(normalise(tool.name), None)
    names, keys = list(spellings.values()), list(spellings)
    await connection.execute(database.sql(KEEP_SPELLINGS), names, keys, tool.name, AUTOMATIC)
