"""
The part of TARSy's REST API that a reader of sessions uses, served from a TARSy-shaped database.

Paths, keys, orders, pages and error bodies are those that a deployment shows. Fields that no reader uses are
left out.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import asyncpg
from aiohttp import web
from aiohttp.test_utils import TestServer

_TERMINAL = ("completed", "failed", "cancelled", "timed_out")


class TarsyRest:
    """
    The API over one database; without a `token` it admits every caller.

    `instead` maps a part of a path to a handler that answers in its place.
    """

    def __init__(self, database_url: str, token: str | None = None) -> None:
        self._database_url = database_url
        self.token = token
        self.instead: dict[str, Callable[[web.Request], Any]] = {}
        app = web.Application(middlewares=[self._authorize_and_answer])
        session = "/api/v1/sessions/{session_id}"
        app.router.add_get("/api/v1/sessions", self._sessions)
        app.router.add_get(session, self._detail)
        app.router.add_get(f"{session}/timeline", self._timeline)
        app.router.add_get(f"{session}/trace", self._trace)
        app.router.add_get(f"{session}/trace/mcp/{{interaction_id}}", self._interaction)
        self._server = TestServer(app)

    async def __aenter__(self) -> "TarsyRest":
        self._pool = await asyncpg.create_pool(self._database_url, min_size=0, max_size=4)
        await self._server.start_server()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._server.close()
        await self._pool.close()

    @property
    def url(self) -> str:
        return str(self._server.make_url("/")).rstrip("/")

    @web.middleware
    async def _authorize_and_answer(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, text="Unauthorized")
        for part, answer in self.instead.items():
            if part in request.path:
                return await answer(request)
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return web.json_response({"message": "Not Found"}, status=404)

    async def _rows(self, statement: str, *arguments: Any) -> list[dict[str, Any]]:
        return [_json_row(row) for row in await self._pool.fetch(statement, *arguments)]

    async def _session(self, request: web.Request) -> dict[str, Any] | None:
        found = await self._rows(
            "SELECT * FROM alert_sessions WHERE session_id = $1 AND deleted_at IS NULL",
            request.match_info["session_id"],
        )
        return found[0] if found else None

    async def _sessions(self, request: web.Request) -> web.Response:
        query = request.query
        page, size = int(query.get("page", 1)), min(int(query.get("page_size", 25)), 100)
        direction = {"asc": "ASC", "desc": "DESC"}[query.get("sort_order", "desc")]
        statuses = query["status"].split(",") if "status" in query else [*_TERMINAL, "pending", "in_progress"]
        rows = await self._rows(
            f"SELECT * FROM alert_sessions WHERE deleted_at IS NULL AND status = ANY($1::text[]) "
            f"AND created_at >= $2::text::timestamptz ORDER BY created_at {direction}, session_id LIMIT $3 OFFSET $4",
            statuses,
            query.get("start_date", "-infinity"),
            size,
            (page - 1) * size,
        )
        keys = ("alert_type", "chain_id", "status", "created_at", "started_at", "completed_at", "error_message")
        sessions = [{"id": row["session_id"]} | {k: row[k] for k in keys} for row in rows]
        return web.json_response({"sessions": sessions, "pagination": {"page": page, "page_size": size}})

    async def _detail(self, request: web.Request) -> web.Response:
        session = await self._session(request)
        if session is None:
            return web.json_response({"message": "resource not found"}, status=404)
        stages = await self._rows(
            "SELECT * FROM stages WHERE session_id = $1 ORDER BY stage_index", session["session_id"]
        )
        keys = ("stage_name", "stage_index", "stage_type", "status", "expected_agent_count", "referenced_stage_id")
        nested = await self._executions(session["session_id"], dict)
        session["id"] = session.pop("session_id")
        session["stages"] = [
            {"id": s["stage_id"]} | {k: s[k] for k in keys} | {"executions": nested[s["stage_id"]]} for s in stages
        ]
        return web.json_response(session)

    async def _executions(
        self, session_id: str, shown: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, list[dict[str, Any]]]:
        """Executions by stage; sub-agents stand under their parents, without a stage id of their own."""
        rows = await self._rows(
            "SELECT * FROM agent_executions WHERE session_id = $1 ORDER BY agent_index, execution_id", session_id
        )
        found = {row["execution_id"]: shown(row) | {"sub_agents": []} for row in rows}
        per_stage: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            execution = found[row["execution_id"]]
            execution.pop("stage_id", None)
            parent = row["parent_execution_id"]
            (found[parent]["sub_agents"] if parent else per_stage[row["stage_id"]]).append(execution)
        return per_stage

    async def _timeline(self, request: web.Request) -> web.Response:
        rows = await self._rows(
            "SELECT * FROM timeline_events WHERE session_id = $1 ORDER BY sequence_number",
            request.match_info["session_id"],
        )
        return web.json_response([{"id": row.pop("event_id"), "edges": {}} | row for row in rows])

    async def _trace(self, request: web.Request) -> web.Response:
        session_id = request.match_info["session_id"]
        calls = {"mcp": defaultdict(list), "llm": defaultdict(list)}
        shown = {
            "mcp": ("interaction_type", "server_name", "tool_name", "created_at"),
            "llm": ("interaction_type", "model_name", "input_tokens", "output_tokens", "created_at"),
        }
        for kind, keys in shown.items():
            statement = f"SELECT * FROM {kind}_interactions WHERE session_id = $1 ORDER BY created_at"
            for row in await self._rows(statement, session_id):
                calls[kind][row["execution_id"]].append({"id": row["interaction_id"]} | {k: row[k] for k in keys})
        nested = await self._executions(
            session_id,
            lambda row: {
                "execution_id": row["execution_id"],
                "agent_name": row["agent_name"],
                "llm_interactions": calls["llm"][row["execution_id"]],
                "mcp_interactions": calls["mcp"][row["execution_id"]],
            },
        )
        stages = await self._rows("SELECT * FROM stages WHERE session_id = $1 ORDER BY stage_index", session_id)
        listed = [
            {"stage_id": s["stage_id"], "stage_name": s["stage_name"], "executions": nested[s["stage_id"]]}
            for s in stages
        ]
        return web.json_response({"stages": listed, "session_interactions": []})

    async def _interaction(self, request: web.Request) -> web.Response:
        rows = await self._rows(
            "SELECT * FROM mcp_interactions WHERE session_id = $1 AND interaction_id = $2",
            request.match_info["session_id"],
            request.match_info["interaction_id"],
        )
        if not rows:
            return web.json_response({"message": "resource not found"}, status=404)
        return web.json_response({"id": rows[0].pop("interaction_id")} | rows[0])


_JSON_COLUMNS = {"metadata", "labels", "tool_arguments", "tool_result", "available_tools", "session_metadata"}


def _json_row(row: asyncpg.Record) -> dict[str, Any]:
    def plain(name: str, value: Any) -> Any:
        if name in _JSON_COLUMNS and value is not None:
            return json.loads(value)
        return value.isoformat() if hasattr(value, "isoformat") else value

    return {name: plain(name, value) for name, value in row.items() if name not in ("llm_request", "llm_response")}
