"""
The parts of TARSy's database schema that this service uses: tables, columns and privileges.

TARSy owns the schema and changes it. Columns are therefore selected by name, after a look at the
catalogue: a column that only some deployments have is read as null where it does not exist.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tarsy_scoring.postgres.database import Connection

SelectLists = Mapping[str, str]
"""By table: the columns to select."""

# Counted for each row beside the values. In memory a row of empty values takes some 900 bytes, a byte of text
# some 3.
ROW_BYTES = 300

# PostgreSQL stores `infinity` and years that Python's datetime cannot hold, and asyncpg maps the first and
# the last datetime to the infinities.
_FIRST_TIME, _LAST_TIME = "'0001-01-02 00:00:00+00'", "'9999-12-31 00:00:00+00'"

# One row per column of these tables, with this role's privileges on it.
FIND_COLUMNS = """
SELECT n.name AS table, a.attname::text AS column,
  has_column_privilege(a.attrelid, a.attnum, 'SELECT') AS may_read,
  has_column_privilege(a.attrelid, a.attnum, 'INSERT') AS may_write
FROM unnest($1::text[]) AS n(name)
JOIN pg_attribute a ON a.attrelid = to_regclass(n.name) AND a.attnum > 0 AND NOT a.attisdropped
"""


def nearest_time(column: str) -> str:
    """SQL for the time in this column, or the nearest that Python can hold; null where the column is."""
    return f"CASE WHEN {column} IS NOT NULL THEN least(greatest({column}, {_FIRST_TIME}), {_LAST_TIME}) END"


def readable(column: str) -> str:
    """SQL that selects this column with times as Python can hold them."""
    return f"{nearest_time(column)} AS {column}" if column.endswith("_at") else column


@dataclass(frozen=True, slots=True)
class Table:
    """
    The columns and privileges that one part of the service needs of one of TARSy's tables.

    Args:
        columns: Columns that are read and must exist.
        written: Columns that are given in new rows.
        optional: Columns that only some deployments have; selected as null where they do not exist or the
            role may not read them.
        expression: Returns the SQL that selects a column.
    """

    columns: Sequence[str]
    optional: Sequence[str]
    written: Sequence[str]
    expression: Callable[[str], str] = readable

    @property
    def names(self) -> list[str]:
        """All columns, in the order of `select_list`."""
        return [*self.columns, *self.optional]

    def select_list(self, found: Mapping[str, Mapping[str, Any]]) -> str:
        """The columns to select; `found` holds the rows of `FIND_COLUMNS` by column."""
        optional = [
            self.expression(c) if c in found and found[c]["may_read"] else f"NULL AS {c}"
            for c in self.optional
        ]
        return ", ".join([*map(self.expression, self.columns), *optional])

    def size_of_row(self) -> str:
        """
        SQL for the bytes of a row with these columns; PostgreSQL knows those of a text without reading it.
        """
        sizes = [f"coalesce(octet_length({column}::text), 0)" for column in self.names]
        return " + ".join([f"{ROW_BYTES}::bigint", *sizes])

    def lacking(self, name: str, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Columns and privileges that the table `name` lacks, in words."""
        if not found:
            return [f"the table {name}"]
        needed = dict.fromkeys([*self.columns, *self.written])
        lacking = [f"the column {name}.{c}" for c in needed if c not in found]
        for privilege, may, wanted in (
            ("SELECT", "may_read", self.columns),
            ("INSERT", "may_write", self.written),
        ):
            refused = [c for c in wanted if c in found and not found[c][may]]
            if refused:
                only = "" if len(refused) == len(wanted) else f" ({', '.join(refused)})"
                lacking.append(f"{privilege}{only} on {name}")
        return lacking


async def inspect(connection: Connection, needs: Mapping[str, Table]) -> tuple[SelectLists, list[str]]:
    """Read the select list of each table, and what the database lacks for this role, in words."""
    found: dict[str, dict[str, Any]] = {name: {} for name in needs}
    for row in await connection.fetch(FIND_COLUMNS, list(needs)):
        found[row["table"]][row["column"]] = row
    lacking = [what for name, table in needs.items() for what in table.lacking(name, found[name])]
    return {name: table.select_list(found[name]) for name, table in needs.items()}, lacking


def _table(columns: str, optional: str = "", written: str = "", **traits: Any) -> Table:
    """A table whose columns are given as words."""
    return Table(columns.split(), optional.split(), written.split(), **traits)


# --- what each part needs -----------------------------------------------------------------------------------

TIMELINE_TABLES: Mapping[str, Table] = {
    "alert_sessions": _table(
        "session_id status alert_data chain_id created_at started_at completed_at deleted_at",
        "alert_type runbook_url final_analysis executive_summary error_message labels",
    ),
    "stages": _table(
        "stage_id stage_name stage_index stage_type status", "expected_agent_count error_message"
    ),
    "agent_executions": _table(
        "execution_id stage_id agent_name agent_index status",
        "parent_execution_id llm_provider model_name original_llm_provider original_model_name task "
        "error_message",
    ),
    "timeline_events": _table(
        "event_id execution_id stage_id sequence_number event_type status content metadata created_at"
    ),
    "mcp_interactions": _table("execution_id interaction_type server_name available_tools"),
    "llm_interactions": _table("session_id execution_id input_tokens output_tokens"),
}
"""For the source `tarsy-db`: `SELECT` on all of them."""

SESSION_TABLES: Mapping[str, Table] = {
    "alert_sessions": _table(
        "session_id chain_id status alert_type created_at completed_at deleted_at", "labels", expression=str
    )
}
"""For the bridge and for `prune --deleted-upstream`."""

REVIEW_TABLES: Mapping[str, Table] = {
    "alert_sessions": _table("session_id review_status quality_rating investigation_feedback"),
    "session_review_activities": _table("session_id actor action quality_rating created_at"),
}
"""For the reviews that the bridge reads."""

WRITE_BACK_TABLES: Mapping[str, Table] = {
    "alert_sessions": _table("session_id status deleted_at"),
    "stages": _table(
        "stage_id stage_index session_id",
        written="stage_id stage_name stage_index expected_agent_count status started_at completed_at "
        "error_message session_id stage_type",
    ),
    "session_scores": _table(
        "score_id",
        written="score_id prompt_hash total_score score_analysis tool_improvement_report score_triggered_by "
        "status started_at completed_at error_message session_id stage_id failure_tags",
    ),
}
"""For the write-back."""

MEMORY_TABLES = {"investigation_memories": _table("memory_id content embedding", written="embedding")}
"""For lessons in TARSy's memory; a missing UPDATE or DELETE shows in the work itself."""
