"""
What people decided about tools that judges missed: how far each has come, and which names are one tool.

Nothing is changed or removed: of each name and of each tool the last word counts.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from tarsy_scoring.evaluation.tool_names import Tool, merge_spellings, normalise
from tarsy_scoring.missing_tools import demand as wishes
from tarsy_scoring.missing_tools.demand import Look, Question, Wishes, first_measured_day
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.postgres.leader import AdvisoryLock
from tarsy_scoring.records.analytics import Selection

SaidState = Literal["open", "planned", "built"]

AUTOMATIC = "automatic"
CLOCKS_APART = timedelta(minutes=5)

# With whether somebody gave the day: where nobody did, `since` is the moment of this or of an earlier saying.
LAST_SAID = """
SELECT l.*, NOT EXISTS (SELECT FROM {schema}.tool_states x WHERE x.tool_key = l.tool_key AND x.said_at = l.since)
  AS is_day_given
FROM (SELECT DISTINCT ON (tool_key) tool, tool_key, state, since, said_by, said_at, note
      FROM {schema}.tool_states ORDER BY tool_key, state_id DESC) l
"""

SAID_BEFORE = "SELECT state, since, said_at FROM {schema}.tool_states WHERE tool_key = $1 ORDER BY state_id DESC"

LAST_MERGES = """
SELECT DISTINCT ON (name_key) name, name_key, tool, is_automatic, decided_by, decided_at
FROM {schema}.tool_merges ORDER BY name_key, merge_id DESC
"""

# Which of these names ($1) any score asked for.
ASKED_FOR = """
SELECT w.name FROM unnest($1::text[]) AS w(name)
WHERE EXISTS (SELECT FROM {schema}.score_missing_tools t WHERE t.tool_name = w.name)
"""

ADD_STATE = """
INSERT INTO {schema}.tool_states (tool, tool_key, state, since, said_by, note)
VALUES ($1, $2, $3, coalesce($4, now()), $5, $6) RETURNING tool, state, since, said_by, said_at, note
"""

ADD_MERGE = """
INSERT INTO {schema}.tool_merges (name, name_key, tool, is_automatic, decided_by) VALUES ($1, $2, $3, $4, $5)
RETURNING name, tool, is_automatic, decided_by, decided_at
"""


# Names ($1) with their keys ($2) of a tool, without those that somebody decided about, be it since it was looked.
KEEP_SPELLINGS = """
INSERT INTO {schema}.tool_merges (name, name_key, tool, is_automatic, decided_by)
SELECT n.name, n.key, $3, true, $4 FROM unnest($1::text[], $2::text[]) AS n(name, key)
WHERE NOT EXISTS (SELECT FROM {schema}.tool_merges m WHERE m.name_key = n.key)
"""

# Decisions are kept one after the other, whoever makes them.
DECISION_LOCK = AdvisoryLock("tarsy-scoring tool decisions")


@dataclass(frozen=True, slots=True)
class Saying:
    """What somebody said of a tool last."""

    tool: str
    state: SaidState
    since: Annotated[
        datetime, Field(description="From when on. What was built is measured since that day where somebody gave it.")
    ]
    said_by: str
    said_at: datetime
    note: str | None


@dataclass(frozen=True, slots=True)
class Merge:
    """That a name belongs to a tool; to itself: that it is kept apart."""

    name: str
    tool: str
    is_automatic: Annotated[bool, Field(description="By its spelling, and not by hand.")]
    decided_by: str
    decided_at: Annotated[datetime | None, Field(description="Null: found at this look, and kept nowhere yet.")]


@dataclass(frozen=True, slots=True)
class Decisions:
    """
    What people decided last, by key of the tool or of the name.

    Args:
        built: The day since which a tool is said to be there, or better than before, where somebody gave it.
        of_tool: The names joined to a tool.
    """

    said: Mapping[str, Saying]
    built: Mapping[str, date]
    merges: Mapping[str, Merge]
    of_tool: Mapping[str, Sequence[Merge]]

    def merge(self, counts: Mapping[str, int]) -> list[Tool]:
        """Tools out of spellings, as they were decided about."""
        decided = {merge.name: merge.tool for merge in self.merges.values()}
        return merge_spellings(counts, decided, {said.tool for said in self.said.values()})

    def joined_to(self, tool: str, names: Iterable[str]) -> list[Merge]:
        """Every name that is this tool's and not a mere spelling of it, and whose word that is."""
        own = normalise(tool)
        found = {
            normalise(name): Merge(name, tool, is_automatic=True, decided_by=AUTOMATIC, decided_at=None)
            for name in names
        }
        direct = self.of_tool.get(own, ())
        # Those that are not decided about are its own by their spelling; some came with a name that they had joined.
        others = [self.merges.get(key, merge) for key, merge in found.items() if key != own]
        return [*direct, *(merge for merge in others if merge not in direct)]

    def is_joined(self, key: str) -> bool:
        """Whether this was joined to another tool."""
        return key in self.merges and normalise(self.merges[key].tool) != key


async def read_decisions(database: Database) -> Decisions:
    """What is decided now. Raises: DatabaseAway."""

    async def work(connection: Connection) -> tuple[list[Any], list[Any]]:
        return await connection.fetch(database.sql(LAST_SAID)), await connection.fetch(database.sql(LAST_MERGES))

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


# --- saying ---------------------------------------------------------------------------------------------


def has_come(moment: datetime) -> bool:
    """Whether a time is not ahead of us; clocks may be apart."""
    return moment <= datetime.now(UTC) + CLOCKS_APART


class UnknownTool(LookupError):
    """No judge has missed a tool of that name."""

    def __init__(self) -> None:
        super().__init__("no judge has missed a tool of that name: look it up in the ledger")


class OneName(ValueError):
    """Two spellings of one name, which belong together anyway."""

    def __init__(self) -> None:
        super().__init__(
            "these two are spellings of one name and belong together anyway: give the name of another tool"
        )


async def say(
    database: Database,
    name: str,
    state: SaidState,
    *,
    by: str,
    since: datetime | None = None,
    note: str | None = None,
    look: Look = wishes.look,
) -> Saying:
    """
    Say how far a tool has come. The names that were found to be its own by their spelling stay its own from then on.

    Args:
        name: Any of its names.
        since: From when on; of what is built: since when it is there, or better than before. None: see `since_when`.

    Raises:
        UnknownTool: Nothing was written.
        DatabaseAway: It may have been kept.
    """
    [tool] = await _find(database, look, [name])
    key = normalise(tool.name)

    async def work(connection: Connection) -> Any:
        await DECISION_LOCK.acquire(connection, database.schema)
        await _keep_spellings(database, connection, tool)
        rows = await connection.fetch(database.sql(SAID_BEFORE), key)
        given = since or since_when(state, [(row["state"], row["since"], row["said_at"]) for row in rows])
        return await connection.fetchrow(database.sql(ADD_STATE), tool.name, key, state, given, by, note)

    saying: Saying = _of_row(Saying, await database.once(work))
    return saying


def since_when(state: SaidState, before: Sequence[tuple[SaidState, datetime, datetime]]) -> datetime | None:
    """
    From when on a state holds that is said without a day; None: from now on. Pure.

    Who says the same again changes no day, and a day that was given with `built` holds until another one is given.

    Args:
        before: State, since and when it was said of what was said of the tool before, the newest first.
    """
    if before and before[0][0] == state:
        return before[0][1]
    built = next((since for said, since, _ in before if said == state == "built"), None)
    return None if built in {at for _, _, at in before} else built


async def join(database: Database, name: str, tool: str | None, *, by: str, look: Look = wishes.look) -> Merge:
    """
    Decide that a name, in all its spellings, belongs to a tool.

    A tool takes the names along that it has by their spelling. Where both are one tool already, it is decided that
    they stay so, whichever of them names it.

    Args:
        tool: Any of its names; None: the name is kept apart from then on.

    Raises:
        UnknownTool: One of the two; nothing was written.
        OneName: Nothing was written.
        DatabaseAway: It may have been kept.
    """
    found = await _find(database, look, [name] if tool is None else [name, tool])
    joined, into = name, name
    if tool is not None:
        into = found[1].name
        if normalise(name) == normalise(into):
            joined = tool
        if normalise(joined) == normalise(into):
            raise OneName

    async def work(connection: Connection) -> Any:
        await DECISION_LOCK.acquire(connection, database.schema)
        if tool is not None and normalise(name) == normalise(found[0].name):
            await _keep_spellings(database, connection, found[0])
        merge = joined, normalise(joined), into, False, by
        return await connection.fetchrow(database.sql(ADD_MERGE), *merge)

    merge: Merge = _of_row(Merge, await database.once(work))
    return merge


async def _find(database: Database, look: Look, names: Sequence[str]) -> list[Tool]:
    """
    The tool of each of these names.

    Names that a look leaves out, or that came after it, are known as well, in the spelling that a judge used.

    Raises:
        UnknownTool: Of one of them.
        DatabaseAway: See `Database.once`.
    """
    wishes, decisions, rows = await asyncio.gather(
        look(database, Question(Selection(), first_measured_day())),
        read_decisions(database),
        database.once(lambda c: c.fetch(database.sql(ASKED_FOR), list(names))),
    )
    # In a thread: names of hostile judges take a while to compare.
    return await asyncio.to_thread(_tools_of, wishes, decisions, {row["name"] for row in rows}, names)


def _tools_of(wishes: Wishes, decisions: Decisions, asked_for: Iterable[str], names: Iterable[str]) -> list[Tool]:
    spoken_of = [said.tool for said in decisions.said.values()]
    joined = [name for merge in decisions.merges.values() for name in (merge.name, merge.tool)]
    tools = decisions.merge(dict.fromkeys([*asked_for, *spoken_of, *joined], 0) | wishes.spellings())
    by_key = {normalise(name): tool for tool in tools for name, _ in tool.spellings}
    try:
        return [by_key[normalise(name)] for name in names]
    except KeyError:
        raise UnknownTool from None


async def _keep_spellings(database: Database, connection: Connection, tool: Tool) -> None:
    """Keep that the names which are a tool's by their spelling are its own, unless somebody decided about them."""
    spellings = {normalise(name): name for name, _ in tool.spellings}
    spellings.pop(normalise(tool.name), None)
    names, keys = list(spellings.values()), list(spellings)
    await connection.execute(database.sql(KEEP_SPELLINGS), names, keys, tool.name, AUTOMATIC)
