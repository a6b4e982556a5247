"""
Replaces a person's name by a pseudonym in every table, so that what the person did stays without the person.

Laws. Each table is read and changed page by page, ordered by key, each page in a separate transaction that
locks the rows to change in key order. A repeat finds the rest. The pseudonym is random and recorded nowhere
beside the name. Texts that people wrote, and copies outside this database, stay as they are.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tarsy_scoring.postgres.database import Database
from tarsy_scoring.references.model import REVIEWED_BY

PAGE = 10_000  # rows read in one transaction
_UUID, _NUMBER = UUID(int=0), 0  # before every key
_LAST_KEY = "(SELECT key FROM page ORDER BY key DESC LIMIT 1) AS last"


@dataclass(frozen=True, slots=True)
class NameColumn:
    """
    Where a name stands.

    Args:
        key: Column that identifies a row, and orders the pages.
        start: A value before every key.
        field: A field, if `column` holds a JSON object.
        prefixes: Texts of which one stands before the name in the same value.
        forgotten: Column that is emptied with the name.
    """

    table: str
    key: str
    start: Any
    column: str
    field: str | None = None
    prefixes: tuple[str, ...] = ("",)
    forgotten: str | None = None

    @property
    def _value(self) -> str:
        return self.column if self.field is None else f"({self.column} ->> '{self.field}')"

    @property
    def _page(self) -> str:
        """SQL for the page $2: its keys in order, and whether each row holds the name $1."""
        values = ", ".join(f"'{prefix}' || $1::text" for prefix in self.prefixes)
        return f"""page AS MATERIALIZED (
  SELECT {self.key} AS key, {self._value} IN ({values}) AS holds FROM {{schema}}.{self.table}
  WHERE {self.key} > $2 ORDER BY {self.key} LIMIT {PAGE}
)"""

    @property
    def count(self) -> str:
        """Counts the rows in a page that hold the name $1, from the key $2 on, and gives the last key."""
        return f"""
WITH {self._page}
SELECT (SELECT count(*) FROM page WHERE holds) AS rows, {_LAST_KEY}
"""

    @property
    def replace(self) -> str:
        """Replaces the name $1 by $3 in a page; gives how many rows changed, and the last key."""
        new = f"left({self._value}, -length($1::text)) || $3::text"
        if self.field is not None:
            new = f"jsonb_set({self.column}, ARRAY['{self.field}'], to_jsonb({new}))"
        also = f", {self.forgotten} = NULL" if self.forgotten else ""
        return f"""
WITH {self._page}, held AS MATERIALIZED (
  SELECT {self.key} AS key FROM {{schema}}.{self.table}
  WHERE {self.key} IN (SELECT key FROM page WHERE holds) ORDER BY {self.key} FOR NO KEY UPDATE
), changed AS (
  UPDATE {{schema}}.{self.table} t SET {self.column} = {new}{also} FROM held
  WHERE t.{self.key} = held.key RETURNING 1
)
SELECT (SELECT count(*) FROM changed) AS rows, {_LAST_KEY}
"""


_SENT_BY = ("", "event: ", "token ", REVIEWED_BY)  # see `references.model`
PLACES = (
    NameColumn("scoring_requests", "request_id", _UUID, "requested_by"),
    NameColumn("session_scores", "score_id", _UUID, "score_triggered_by"),
    NameColumn("session_scores", "score_id", _UUID, "error_message", prefixes=("cancelled by ",)),
    NameColumn("session_scores", "score_id", _UUID, "reference", "provided_by"),
    NameColumn("session_scores", "score_id", _UUID, "reference", "sent_by", _SENT_BY),
    NameColumn("session_references", "reference_id", _UUID, "provided_by"),
    NameColumn("session_references", "reference_id", _UUID, "sent_by", prefixes=_SENT_BY),
    NameColumn("scoring_events", "event_id", _UUID, "payload", "score_triggered_by"),
    NameColumn("scoring_events", "event_id", _UUID, "payload", "error_message", ("cancelled by ",)),
    NameColumn("changes", "change_id", _NUMBER, "changed_by", forgotten="address"),
    NameColumn("score_labels", "label_id", _NUMBER, "labelled_by"),
    NameColumn("tool_states", "state_id", _NUMBER, "said_by"),
    NameColumn("tool_merges", "merge_id", _NUMBER, "decided_by"),
    NameColumn("anchor_sessions", "session_id", "", "added_by"),
    NameColumn("anchor_sessions", "session_id", "", "removed_by"),
    NameColumn("drift_findings", "event_id", _UUID, "confirmed_by"),
    NameColumn("pauses", "pause_id", _UUID, "paused_by"),
    NameColumn("erasures", "erasure_id", _NUMBER, "erased_by"),
)

# Rows of a caller that exist for a day. `Caller.identity` makes the keys.
_ANSWERS = "FROM {schema}.kept_answers WHERE caller IN ('user:' || $1, 'token:' || $1)"
COUNT_ANSWERS = f"SELECT count(*) AS rows {_ANSWERS}"
REMOVE_ANSWERS = f"WITH gone AS (DELETE {_ANSWERS} RETURNING 1) SELECT count(*) AS rows FROM gone"


async def count(
    database: Database, name: str, on_progress: Callable[[int], None] = lambda _: None
) -> dict[str, int]:
    """
    Count the rows that hold this name, by table.

    Args:
        on_progress: Called with the number of places that were read so far.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    return await _run(database, name, None, on_progress)


async def pseudonymise(
    database: Database, name: str, on_progress: Callable[[int], None] = lambda _: None
) -> tuple[str, dict[str, int]]:
    """
    Replace a person's name by a new pseudonym, and delete kept answers and rates for this caller.

    Args:
        on_progress: Called with the number of places that were read so far.

    Returns:
        The pseudonym, and the number of changed or deleted rows by table.

    Raises:
        DatabaseAway: Some rows may have been changed; a repeat changes the others, under another pseudonym.
    """
    pseudonym = f"erased-{secrets.token_hex(6)}"
    return pseudonym, await _run(database, name, pseudonym, on_progress)


async def _run(
    database: Database, name: str, pseudonym: str | None, on_progress: Callable[[int], None]
) -> dict[str, int]:
    rows: dict[str, int] = {}
    for number, place in enumerate(PLACES, start=1):
        rows[place.table] = rows.get(place.table, 0) + await _run_place(database, place, name, pseudonym)
        on_progress(number)
    answers = await database.fetch(COUNT_ANSWERS if pseudonym is None else REMOVE_ANSWERS, name)
    return rows | {"kept_answers": answers[0]["rows"]}


async def _run_place(database: Database, place: NameColumn, name: str, pseudonym: str | None) -> int:
    changed, last = 0, place.start
    while last is not None:
        arguments = (name, last) if pseudonym is None else (name, last, pseudonym)
        [page] = await database.fetch(place.count if pseudonym is None else place.replace, *arguments)
        changed, last = changed + page["rows"], page["last"]
    return changed
