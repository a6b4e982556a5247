"""
The parts of TARSy's database schema that this service uses: tables, columns and privileges.

TARSy owns the schema and changes it. Columns are therefore selected by name, after a look at the
catalogue: a column that only some deployments have is read as null where it does not exist.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tarsy_scoring.postgres.database import Connection

SelectLists = Mapping[str, str]
"""By table: the columns to select. A table that may be absent, and is, has no entry."""

# Counted for each row beside the values. In memory a row of empty values takes some 900 bytes, a byte of text
# some 3.
ROW_BYTES = 300

# PostgreSQL stores `infinity` and years that Python's datetime cannot hold, and asyncpg maps the first and
# the last datetime to the infinities. Go writes the first moment of year 1 for "no time".
_FIRST_TIME, _LAST_TIME = "'0001-01-02 00:00:00+00'", "'9999-12-31 00:00:00+00'"

# One row per column with this role's privileges on it; a table that does not exist gives a null column.
FIND_COLUMNS = """
SELECT n.name AS table, a.attname::text AS column,
  has_column_privilege(a.attrelid, a.attnum, 'SELECT') AS may_read,
  has_column_privilege(a.attrelid, a.attnum, 'INSERT') AS may_write,
  a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS must_be_given
FROM unnest($1::text[]) AS n(name)
LEFT JOIN pg_attribute a ON a.attrelid = to_regclass(n.name) AND a.attnum > 0 AND NOT a.attisdropped
"""

# A schema that has all these tables and on which this role lacks USAGE: the tables are invisible to it.
FIND_CLOSED_SCHEMA = """
SELECT s.nspname FROM pg_class t JOIN pg_namespace s ON s.oid = t.relnamespace
WHERE t.relname = ANY($1::text[]) AND t.relkind IN ('r', 'p', 'v')
  AND NOT has_schema_privilege(s.oid, 'USAGE')
GROUP BY s.nspname HAVING count(*) = cardinality($1::text[]) ORDER BY s.nspname <> 'public', s.nspname LIMIT 1
"""


def time_or_null(column: str) -> str:
    """SQL for the time in this column; null where Python cannot hold it."""
    return f"CASE WHEN {column} BETWEEN {_FIRST_TIME} AND {_LAST_TIME} THEN {column} END"


def nearest_time(column: str) -> str:
    """SQL for the time in this column, or the nearest that Python can hold; null where the column is."""
    return f"CASE WHEN {column} IS NOT NULL THEN least(greatest({column}, {_FIRST_TIME}), {_LAST_TIME}) END"


def readable(column: str) -> str:
    """SQL that selects this column with times as Python can hold them."""
    if not column.endswith("_at"):
        return column
    # A session that was deleted at `infinity` is deleted, so that column must not become null.
    return f"{nearest_time(column) if column == 'deleted_at' else time_or_null(column)} AS {column}"


@dataclass(frozen=True, slots=True)
class Table:
    """
    The columns and privileges that one part of the service needs of one of TARSy's tables.

    Args:
        columns: Columns that are read and must exist.
        written: Columns that are given in new rows. A column without a default that is not among them makes
            the table unfit, because every insert would fail.
        optional: Columns that only some deployments have, with their types; selected as null elsewhere.
        expression: Returns the SQL that selects a column that exists.
        may_lack_privileges: Select an optional column as null, too, where the role may not read it.
        may_be_absent: Do without the table where it does not exist, or where the role cannot read all of it.
    """

    columns: Sequence[str]
    written: Sequence[str]
    optional: Mapping[str, str]
    expression: Callable[[str], str] = str
    may_lack_privileges: bool = False
    may_be_absent: bool = False

    def select_list(self, found: Mapping[str, Mapping[str, Any]]) -> str:
        """The columns to select; `found` holds the rows of `FIND_COLUMNS` by column."""
        optional = [
            self.expression(c) if self._is_used(c, found) else f"NULL::{kind} AS {c}"
            for c, kind in self.optional.items()
        ]
        return ", ".join([*map(self.expression, self.columns), *optional])

    def size_of_row(self) -> str:
        """
        SQL for the bytes of a row with these columns; PostgreSQL knows those of a text without reading it.
        """
        sizes = [f"coalesce(octet_length({column}::text), 0)" for column in [*self.columns, *self.optional]]
        return " + ".join([f"{ROW_BYTES}::bigint", *sizes])

    def lacking(self, name: str, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Columns, privileges and defaults that the table `name` lacks, in words."""
        read = [*self.columns, *(c for c in self.optional if self._is_used(c, found))]
        lacking = [f"the column {name}.{c}" for c in dict.fromkeys([*read, *self.written]) if c not in found]
        for privilege, may, wanted in (("SELECT", "may_read", read), ("INSERT", "may_write", self.written)):
            refused = [c for c in wanted if c in found and not found[c][may]]
            if refused:
                lacking.append(_refusal(privilege, name, refused, is_whole=len(refused) == len(wanted)))
        return lacking + self._unfilled(name, found)

    def _unfilled(self, name: str, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Columns without a default that a written table has and this version does not know, in words."""
        if not self.written:
            return []
        unknown = [c for c, row in found.items() if row["must_be_given"] and c not in self.written]
        return [f"a default for {name}.{c}, which this version does not know" for c in unknown]

    def _is_used(self, column: str, found: Mapping[str, Mapping[str, Any]]) -> bool:
        return column in found and (not self.may_lack_privileges or found[column]["may_read"])


def _refusal(privilege: str, table: str, columns: Iterable[str], *, is_whole: bool) -> str:
    only = "" if is_whole else f" ({', '.join(columns)})"
    return f"{privilege}{only} on {table}"


async def inspect(connection: Connection, needs: Mapping[str, Table]) -> tuple[SelectLists, list[str]]:
    """Read the select list of each table, and what the database lacks for this role, in words."""
    found: dict[str, dict[str, Any]] = {name: {} for name in needs}
    for row in await connection.fetch(FIND_COLUMNS, list(needs)):
        if row["column"] is not None:
            found[row["table"]][row["column"]] = row
    usable = {
        n: t for n, t in needs.items() if not (t.may_be_absent and (not found[n] or t.lacking(n, found[n])))
    }
    absent = [name for name in usable if not found[name]]
    lacking = await _lacking_tables(connection, absent)
    for name, table in usable.items():
        if found[name]:
            lacking += table.lacking(name, found[name])
    return {name: table.select_list(found[name]) for name, table in usable.items()}, lacking


async def _lacking_tables(connection: Connection, absent: list[str]) -> list[str]:
    closed = await connection.fetchval(FIND_CLOSED_SCHEMA, absent) if absent else None
    return [f"USAGE on the schema {closed}"] if closed else [f"the table {name}" for name in absent]


def _table(
    columns: str, *, written: str = "", optional: Mapping[str, str] | None = None, **traits: Any
) -> Table:
    """A table whose columns are given as words; `optional` has them by type."""
    types = {column: kind for kind, names in (optional or {}).items() for column in names.split()}
    return Table(tuple(columns.split()), tuple(written.split()), types, **traits)


_for_timelines = partial(_table, expression=readable, may_lack_privileges=True)

# --- what each part needs -----------------------------------------------------------------------------------

TIMELINE_TABLES: Mapping[str, Table] = {
    "alert_sessions": _for_timelines(
        "session_id status alert_data chain_id created_at",
        optional={
            "varchar": "alert_type runbook_url",
            "text": "final_analysis executive_summary error_message",
            "jsonb": "labels",
            "timestamptz": "started_at completed_at deleted_at",
        },
    ),
    "stages": _for_timelines(
        "stage_id stage_name stage_index stage_type status",
        optional={
            "bigint": "expected_agent_count",
            "varchar": "referenced_stage_id",
            "text": "error_message",
        },
    ),
    "agent_executions": _for_timelines(
        "execution_id stage_id agent_name agent_index status",
        optional={
            "varchar": "parent_execution_id llm_provider model_name original_llm_provider original_model_name",
            "text": "task error_message",
        },
    ),
    "timeline_events": _for_timelines(
        "event_id execution_id stage_id sequence_number event_type status content metadata created_at"
    ),
    "mcp_interactions": _for_timelines(
        "execution_id interaction_type server_name available_tools",
        optional={"varchar": "tool_name", "bigint": "duration_ms"},
    ),
    # Only tokens come from here, and roles of older installations were not granted it.
    "llm_interactions": _for_timelines(
        "session_id execution_id input_tokens output_tokens", may_be_absent=True
    ),
}
"""For the source `tarsy-db`: `SELECT` on all of them."""

SESSION_TABLES: Mapping[str, Table] = {
    "alert_sessions": _table(
        "session_id chain_id status created_at",
        optional={"varchar": "alert_type", "timestamptz": "completed_at deleted_at", "jsonb": "labels"},
    )
}
"""For the bridge and for `prune --deleted-upstream`."""

WRITE_BACK_TABLES: Mapping[str, Table] = {
    "alert_sessions": _table("session_id status", optional={"timestamptz": "deleted_at"}),
    "stages": _table(
        "stage_id stage_index session_id",
        written="stage_id stage_name stage_index expected_agent_count status started_at completed_at error_message "
        "session_id stage_type",
    ),
    "session_scores": _table(
        "score_id",
        written="score_id prompt_hash total_score score_analysis tool_improvement_report score_triggered_by status "
        "started_at completed_at error_message session_id stage_id failure_tags",
    ),
}
"""For the write-back, the only part that writes to TARSy."""
