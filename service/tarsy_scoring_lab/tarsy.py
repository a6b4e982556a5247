"""
A stand-in for TARSy's database: its tables, and sessions written as TARSy writes them.

For demos and tests. The service itself never writes to TARSy's database.
"""

import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import asyncpg

from tarsy_scoring.timeline.parsing import moment

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # stands where a session says no time: TARSy requires one


async def create_tables(url: str) -> None:
    """Make the tables that are not there yet."""
    ddl = files("tarsy_scoring_lab").joinpath("tarsy_schema.sql").read_text(encoding="utf-8")
    async with _connected(url) as connection:
        await connection.execute(ddl)


async def load_session(target: Any, session: dict[str, Any]) -> None:
    """
    Write one session in the neutral JSON shape, in one transaction.

    Its tools become one list per server on the first execution, its tool calls interactions beside their
    events, the tokens of an execution one call of a model. NUL, which PostgreSQL cannot store, becomes
    U+FFFD.

    Args:
        target: A URL or an open `asyncpg` connection, which stays open.
        session: As a session file holds it, with every entry well formed.

    Raises:
        asyncpg.UniqueViolationError: The session is there already.
    """
    async with _connected(target) as connection, connection.transaction():
        rows = _Rows(session)
        for table, columns in _COLUMNS.items():
            places = ", ".join(f"${i}" for i in range(1, len(columns) + 1))
            statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"
            await connection.executemany(statement, [[row.get(c) for c in columns] for row in rows.of[table]])


@asynccontextmanager
async def _connected(target: Any) -> AsyncIterator[Any]:
    if not isinstance(target, str):
        yield target
        return
    connection = await asyncpg.connect(target, timeout=30)
    try:
        yield connection
    finally:
        await connection.close()


# In the order in which foreign keys allow them.
_COLUMNS = {
    "alert_sessions": ("session_id", "alert_data", "agent_type", "alert_type", "status", "created_at", "started_at",
                       "completed_at", "error_message", "final_analysis", "executive_summary", "runbook_url",
                       "chain_id", "labels", "deleted_at"),
    "stages": ("stage_id", "stage_name", "stage_index", "expected_agent_count", "status", "error_message", "session_id",
               "stage_type", "referenced_stage_id"),
    "agent_executions": ("execution_id", "agent_name", "agent_index", "status", "error_message", "llm_backend",
                         "session_id", "stage_id", "llm_provider", "task", "parent_execution_id",
                         "original_llm_provider", "model_name", "original_model_name"),
    "timeline_events": ("event_id", "sequence_number", "created_at", "updated_at", "event_type", "status", "content",
                        "metadata", "execution_id", "session_id", "stage_id", "parent_execution_id"),
    "mcp_interactions": ("interaction_id", "created_at", "interaction_type", "server_name", "tool_name",
                         "tool_arguments", "tool_result", "available_tools", "duration_ms", "execution_id",
                         "session_id", "stage_id"),
    "llm_interactions": ("interaction_id", "created_at", "interaction_type", "model_name", "llm_request",
                         "llm_response", "input_tokens", "output_tokens", "execution_id", "session_id", "stage_id"),
}  # fmt: skip


class _Rows:
    """A session as rows per table."""

    def __init__(self, session: dict[str, Any]) -> None:
        self.of: dict[str, list[dict[str, Any]]] = {table: [] for table in _COLUMNS}
        self._session_id = session["session_id"]
        self._created_at = moment(session.get("created_at")) or _EPOCH
        self._add(
            "alert_sessions",
            session,
            agent_type="kubernetes",
            created_at=self._created_at,
            started_at=moment(session.get("started_at")),
            completed_at=moment(session.get("completed_at")),
            deleted_at=moment(session.get("deleted_at")),
            chain_id=session.get("chain_id") or "default",
            labels=_jsonb(session.get("labels")),
        )
        for stage in session["stages"]:
            self._add_stage(stage)
        self._add_tool_lists(session.get("available_tools") or [])

    def _add(self, table: str, source: dict[str, Any], **values: Any) -> None:
        row = {c: source.get(c) for c in _COLUMNS[table]} | {"session_id": self._session_id} | values
        self.of[table].append({c: v.replace("\0", "\ufffd") if isinstance(v, str) else v for c, v in row.items()})

    def _add_stage(self, stage: dict[str, Any]) -> None:
        executions = stage["executions"]
        agents = sum(e.get("parent_execution_id") is None for e in executions)
        declared = stage.get("expected_agent_count")
        self._add("stages", stage, expected_agent_count=agents if declared is None else declared)
        # A sub-agent refers to its parent, so parents go first.
        for execution in sorted(executions, key=lambda e: e.get("parent_execution_id") is not None):
            self._add(
                "agent_executions",
                execution,
                stage_id=stage["stage_id"],
                llm_backend=execution.get("llm_backend") or "langchain",
            )
            self._add_tokens(execution, stage["stage_id"])
            for event in execution["events"]:
                self._add_event(event, execution, stage["stage_id"])

    def _add_tokens(self, execution: dict[str, Any], stage_id: str) -> None:
        if execution.get("input_tokens") is None and execution.get("output_tokens") is None:
            return
        self._add(
            "llm_interactions",
            execution,
            interaction_id=f"{execution['execution_id']}/model",
            created_at=self._created_at,
            interaction_type="iteration",
            model_name=execution.get("model_name") or "",
            llm_request="{}",
            llm_response="{}",
            stage_id=stage_id,
        )

    def _add_event(self, event: dict[str, Any], execution: dict[str, Any], stage_id: str) -> None:
        at = moment(event.get("created_at")) or self._created_at
        place = {"execution_id": execution["execution_id"], "stage_id": stage_id}
        metadata = event.get("metadata")
        parent = execution.get("parent_execution_id")
        self._add(
            "timeline_events",
            event,
            created_at=at,
            updated_at=at,
            metadata=_jsonb(metadata),
            parent_execution_id=parent,
            **place,
        )
        if event["event_type"] != "llm_tool_call" or not metadata:
            return
        self._add(
            "mcp_interactions",
            {},
            interaction_id=f"{event['event_id']}/call",
            created_at=at,
            interaction_type="tool_call",
            server_name=metadata.get("server_name") or "",
            tool_name=metadata.get("tool_name"),
            tool_arguments=_jsonb({"raw": metadata.get("arguments")}),
            tool_result=_jsonb({"content": event["content"], "is_error": bool(metadata.get("is_error"))}),
            duration_ms=metadata.get("duration_ms"),
            **place,
        )

    def _add_tool_lists(self, tools: list[dict[str, Any]]) -> None:
        executions = self.of["agent_executions"]
        if not executions:
            return
        servers: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for tool in tools:
            description = tool.get("description") or ""
            servers[tool.get("server_name") or ""].append({"name": tool["tool_name"], "description": description})
        first = executions[0]
        for server, listed in servers.items():
            self._add(
                "mcp_interactions",
                {},
                interaction_id=f"{first['execution_id']}/tools/{server}",
                created_at=self._created_at,
                interaction_type="tool_list",
                server_name=server,
                available_tools=_jsonb(listed),
                execution_id=first["execution_id"],
                stage_id=first["stage_id"],
            )


def _jsonb(value: object) -> str | None:
    """`jsonb` goes in as text; NUL, also escaped, is not allowed there."""
    return None if value is None else json.dumps(value, ensure_ascii=True).replace("\\u0000", "\\ufffd")
