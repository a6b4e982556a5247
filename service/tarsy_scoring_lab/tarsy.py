"""
A stand-in for TARSy's database: the tables, and sessions written as TARSy writes them.

For demos and tests. The service itself never writes to TARSy's database.
"""

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import asyncpg

from tarsy_scoring.postgres.moments import moment
from tarsy_scoring.telemetry.stopping import closing
from tarsy_scoring.timeline.text import storable_json

Row = dict[str, Any]

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # creation time of a session without one, since TARSy requires it


async def create_tables(url: str) -> None:
    """Create the tables of TARSy that do not exist yet."""
    ddl = files("tarsy_scoring_lab").joinpath("tarsy_schema.sql").read_text(encoding="utf-8")
    async with _connected(url) as connection:
        await connection.execute(ddl)


async def load_session(target: Any, session: Row) -> None:
    """
    Write one session in the neutral JSON shape into the tables, in one transaction.

    The available tools become one tool list per server, on the first execution. A tool call becomes an
    interaction besides the event. The tokens of an execution become one call of a model. NUL, which
    PostgreSQL cannot store, becomes U+FFFD.

    Args:
        target: A URL or an open `asyncpg` connection, which stays open.
        session: The content of a session file in which every entry is well formed.

    Raises:
        asyncpg.UniqueViolationError: The tables have this session already.
    """
    rows: dict[str, list[Row]] = defaultdict(list)
    for table, row in _rows_of(storable_json(session)):
        rows[table].append(row)
    async with _connected(target) as connection, connection.transaction():
        for table, of_table in rows.items():  # in the order in which foreign keys allow them
            await connection.execute(
                f"INSERT INTO {table} SELECT * FROM jsonb_populate_recordset(NULL::{table}, $1)",
                json.dumps(of_table, default=datetime.isoformat),
            )


@asynccontextmanager
async def _connected(target: Any) -> AsyncIterator[Any]:
    if not isinstance(target, str):
        yield target
        return
    connection = await asyncpg.connect(target, timeout=30)
    async with closing(connection):
        yield connection


def _rows_of(session: Row) -> Iterator[tuple[str, Row]]:
    """
    The rows of a session, each with a table, in the order that foreign keys require.

    A row may have keys that are no column; `jsonb_populate_recordset` ignores them.
    """
    created_at = moment(session.get("created_at")) or _EPOCH
    times = {name: moment(session.get(name)) for name in ("started_at", "completed_at", "deleted_at")}
    required = {
        "agent_type": "kubernetes",
        "created_at": created_at,
        "chain_id": session.get("chain_id") or "default",
    }
    yield "alert_sessions", session | times | required | {"stages": None}
    of_session = {"session_id": session["session_id"]}
    first: Row | None = None
    for stage in session["stages"]:
        executions = stage["executions"]
        agents = sum(e.get("parent_execution_id") is None for e in executions)
        declared = stage.get("expected_agent_count")
        count = {"expected_agent_count": agents if declared is None else declared}
        yield "stages", stage | of_session | count | {"executions": None}
        for execution in executions:
            place = of_session | {"stage_id": stage["stage_id"], "execution_id": execution["execution_id"]}
            first = first or place
            backend = {"llm_backend": execution.get("llm_backend") or "langchain"}
            yield "agent_executions", execution | place | backend | {"events": None}
            yield from _model_call_of(execution, place, created_at)
            for event in execution["events"]:
                yield from _rows_of_event(event, execution, place, created_at)
    if first is not None:
        yield from _tool_lists(session.get("available_tools") or [], first, created_at)


def _model_call_of(execution: Row, place: Row, at: datetime) -> Iterator[tuple[str, Row]]:
    tokens = {name: execution.get(name) for name in ("input_tokens", "output_tokens")}
    if any(count is not None for count in tokens.values()):
        call: Row = {
            "interaction_id": f"{execution['execution_id']}/model",
            "created_at": at,
            "interaction_type": "iteration",
            "model_name": execution.get("model_name") or "",
            "llm_request": {},
            "llm_response": {},
        }
        yield "llm_interactions", place | tokens | call


def _rows_of_event(event: Row, execution: Row, place: Row, default: datetime) -> Iterator[tuple[str, Row]]:
    at = moment(event.get("created_at")) or default
    parent = {"parent_execution_id": execution.get("parent_execution_id")}
    yield "timeline_events", event | place | parent | {"created_at": at, "updated_at": at}
    metadata = event.get("metadata")
    if event["event_type"] == "llm_tool_call" and metadata:
        call: Row = {
            "interaction_id": f"{event['event_id']}/call",
            "created_at": at,
            "interaction_type": "tool_call",
            "server_name": metadata.get("server_name") or "",
            "tool_name": metadata.get("tool_name"),
            "tool_arguments": {"raw": metadata.get("arguments")},
            "tool_result": {"content": event["content"], "is_error": bool(metadata.get("is_error"))},
            "duration_ms": metadata.get("duration_ms"),
        }
        yield "mcp_interactions", place | call


def _tool_lists(tools: list[Row], place: Row, at: datetime) -> Iterator[tuple[str, Row]]:
    servers: dict[str, list[Row]] = defaultdict(list)
    for tool in tools:
        listed = {"name": tool["tool_name"], "description": tool.get("description") or ""}
        servers[tool.get("server_name") or ""].append(listed)
    for server, listed_tools in servers.items():
        listing = {
            "interaction_id": f"{place['execution_id']}/tools/{server}",
            "created_at": at,
            "interaction_type": "tool_list",
            "server_name": server,
            "available_tools": listed_tools,
        }
        yield "mcp_interactions", place | listing
