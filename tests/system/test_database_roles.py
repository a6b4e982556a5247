"""The roles of `migrations/roles.sql`: each program does its work under its own, and no role has rights beyond that."""

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from api_site import AS_ALICE, open_api
from builders import DEFAULT_CRITERIA, connected, open_scoring, rescore
from infrastructure import Topics, wait_until
from processes import PATIENCE_S, Service
from stored import store_score
from tarsy_scoring.postgres.migrate import migrate
from tarsy_scoring.timeline.model import FoundSession
from tarsy_scoring.web.app import application
from tarsy_scoring_lab.scripted_judge import Fault, ScriptedJudge

ROLES = (Path(__file__).parents[2] / "migrations" / "roles.sql").read_text("utf-8")
PROGRAMS = ("worker", "api", "readonly")
TOOL, OTHER = "read-file", "list-files"


class EverySession:
    """A timeline source that has every session, ended, and no timelines."""

    may_change = True

    async def find_session(self, session_id: str) -> FoundSession:
        return FoundSession(session_id, "k", "completed", None)


@dataclass(frozen=True)
class Logins:
    """URLs of one database for each role."""

    admin: str
    owner: str
    worker: str
    api: str
    readonly: str


@pytest.fixture
async def logins(empty_database_url: str) -> AsyncIterator[Logins]:
    """A database that an owner without other rights has migrated, with a login for each program."""
    suffix = uuid.uuid4().hex[:8]
    names = {role: f"{role}_{suffix}" for role in ("owner", *PROGRAMS)}
    urls = {role: re.sub("//.*@", f"//{name}:secret@", empty_database_url) for role, name in names.items()}
    async with connected(empty_database_url) as admin:
        for name in names.values():
            await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
        try:
            await admin.execute(f"ALTER DATABASE {empty_database_url.rpartition('/')[2]} OWNER TO {names['owner']}")
            await asyncio.to_thread(migrate, urls["owner"])
            await admin.execute(ROLES)
            for role in PROGRAMS:
                await admin.execute(f"GRANT scoring_{role} TO {names[role]}")
            yield Logins(admin=empty_database_url, **urls)
        finally:
            await admin.execute(f"REASSIGN OWNED BY {names['owner']} TO CURRENT_USER")
            for name in names.values():
                await admin.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


async def test_programs_work_under_their_roles(
    logins: Logins, tmp_path: Path, topics: Topics, judge: ScriptedJudge
) -> None:
    """From an event to a score and its events, its label and its page, rolling signals, and the end of its records."""
    service = Service(tmp_path, logins.worker, topics, judge)
    service.add_session("session-1")
    judge.script(Fault(kind="reply", turn="missing_tools", content="1. **read-file**: its content was inferred."))
    try:
        service.worker()
        await service.announce("session-1", chain_id="k")
        score = await service.score_becomes("session-1", "completed")
        api = service.command("api", SCORING_DATABASE_URL=logins.api, SCORING_API_PORT="0")
        address = (await api.says("api.listening"))["address"]
        await _use(f"{address}/api/v1/scoring", score["score_id"])
        await service.all_end(2)
        insights = service.command(
            "insights",
            SCORING_DATABASE_URL=logins.readonly,
            SCORING_CREATE_TOPICS="true",
            SCORING_TOPIC_SCORING_INSIGHTS=f"insights-{uuid.uuid4().hex[:8]}",
        )
        await insights.ready()
        for command in COMMANDS:
            done = await service.run(*command.split())
            assert done.status == 0, (command, done.stderr)
        assert await service.value("SELECT count(*) FROM session_scores") == 0
        async with connected(logins.readonly) as reader:
            assert await reader.fetchval("SELECT count(*) FROM score_history") == 0
    finally:
        await service.close()


COMMANDS = (
    "pause --chain k",
    "resume --chain k",
    "rescore session-1",
    "dead-letters list",
    "prune --keep 1 --yes",
    "erase session-1 --yes",
)
READS = ("sessions", "export", "analytics/trends", "analytics/missing-tools", "scores/{}/labels")


async def _use(address: str, score_id: uuid.UUID) -> None:
    """Whatever the API changes, once, and what it reads."""
    changes: dict[str, dict[str, object]] = {
        "sessions/session-1/score": {"force_rescore": True},
        f"scores/{score_id}/labels": {"agrees": True},
        "missing-tools/states": {"tool": "read-file", "state": "planned"},
        "missing-tools/merges": {"name": "read-file"},
    }
    async with aiohttp.ClientSession() as client:

        async def is_ready() -> bool:
            async with client.get(address.replace("/api/v1/scoring", "/readyz")) as answer:
                return answer.status == 200

        await wait_until(is_ready, PATIENCE_S, "the API is ready")
        for path, body in changes.items():
            for _ in range(2):
                async with client.post(f"{address}/{path}", json=body, headers={"Idempotency-Key": path}) as answer:
                    assert answer.status < 300, (path, await answer.text())
        for path in READS:
            async with client.get(f"{address}/{path.format(score_id)}") as answer:
                assert answer.status == 200, (path, await answer.text())


# For every POST that the application has: its fields. Those without which it refuses the request have a `!`.
REFERENCE = {"text": "a bad image", "source_url": "https://tickets.example/1", "provided_by": "grace"}
SCORE = {"force_rescore": True, "criteria": DEFAULT_CRITERIA, "reason": "why", "reference": REFERENCE}
FORM = {"force": "1", "criteria": DEFAULT_CRITERIA, "reason": "why", "reference": "a bad image", "key": "k"}
BODIES: dict[str, dict[str, Any]] = {
    "/api/v1/scoring/sessions/{session_id:path}/score": SCORE | {"use_reference": False, "purpose": "production"},
    "/api/v1/scoring/scores/{score_id}/cancel": {},
    "/api/v1/scoring/scores/{score_id}/labels": {"outcome!": "0-49", "number": 20.0, "reason": "why"},
    "/api/v1/scoring/missing-tools/states": {"tool!": TOOL, "state!": "built", "since": "2026-01-01T00:00:00Z"}
    | {"note": "since spring"},
    "/api/v1/scoring/missing-tools/merges": {"name!": TOOL, "tool": OTHER},
    "/api/v1/sessions/{session_id}/score": {},
    "/sessions/{session_id}/score": FORM | {"use_reference": "0"},
    "/scores/{score_id}/cancel": {},
    "/scores/{score_id}/labels": {"said!": "outcome:0-49", "number": "20", "reason": "why"},
    "/missing-tools/states": {"tool!": TOOL, "state!": "built", "since": "2026-01-01", "note": "since spring"},
    "/missing-tools/merges": {"name!": TOOL, "tool": OTHER},
    "/week/drift/{event_id}": {},
}


def posts() -> list[Any]:
    """Each route of the application that changes rows, as clients reach it; signing in changes none."""
    routes = [route for route in application().routes if "POST" in getattr(route, "methods", ())]
    return [route for route in routes if route.path != "/sign-in"]


def variants(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields that are needed, alone, with each other one, and with all that go together."""
    needed = {name[:-1]: value for name, value in fields.items() if name.endswith("!")}
    others = {name: value for name, value in fields.items() if not name.endswith("!")}
    together = {name: value for name, value in others.items() if name != "use_reference"}
    return [needed, *(needed | {name: value} for name, value in others.items()), needed | together]


def test_every_part_of_every_post_is_walked() -> None:
    """A new POST, or a new optional part of one, needs an entry."""
    assert {route.path for route in posts()} == BODIES.keys()
    document = application().openapi()
    for route in posts():
        operation = document["paths"].get(route.path_format, {}).get("post", {})
        body = json.dumps(operation.get("requestBody", {}))
        walked = {name.removesuffix("!") for name in BODIES[route.path]}
        for name in re.findall("#/components/schemas/([A-Za-z]+)", body):
            parts = document["components"]["schemas"][name]["properties"].keys()
            assert parts - {"agrees"} == walked, route.path


@pytest.mark.parametrize("role", PROGRAMS)
async def test_every_post_does_its_work_under_the_roles_that_write(logins: Logins, role: str) -> None:
    """Readers change nothing, whatever they post."""
    answers: dict[str, int] = {}
    async with open_scoring(logins.owner) as owner, open_api(getattr(logins, role), EverySession()) as api:
        for number, (route, body) in enumerate((r, b) for r in posts() for b in variants(BODIES[r.path])):
            session_id, is_page = f"session-{number}", not route.path.startswith("/api/")
            if "cancel" in route.path:
                await owner.accept(rescore(session_id, chain_id="k"))
                score_id = await owner.value("SELECT score_id FROM session_scores WHERE session_id = $1", session_id)
            else:
                score_id = await store_score(owner, session_id, 20, missing_tools=(TOOL, OTHER))
            path = route.path.replace(":path", "").format(session_id=session_id, score_id=score_id, event_id=score_id)
            key = {"key": f"key-{number}"} if "key" in body else {}
            sent: dict[str, Any] = {"data": body | key} if is_page else {"json": body}
            if number % 2:
                sent["headers"] = AS_ALICE | {"Idempotency-Key": f"key-{number}"}
            before = await owner.everything()
            answers[f"{route.path} {sorted(body)}"] = (await api.client.post(path, **sent)).status_code
            assert role != "readonly" or await owner.everything() == before, path
    expected = [500] if role == "readonly" else [200, 201, 202, 303]
    assert {what: answer for what, answer in answers.items() if answer not in expected} == {}


NOT_OF_THE_API = Path(__file__).with_suffix(".sql").read_text("utf-8").splitlines()


async def test_api_changes_only_what_it_answers_for(logins: Logins) -> None:
    async with connected(logins.api) as connection:
        for statement in NOT_OF_THE_API:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)


async def test_readers_and_workers_have_no_rights_beyond_theirs(logins: Logins) -> None:
    """Readers change nothing; workers change rows, but neither tables nor the mark of the revision."""
    async with connected(logins.readonly) as reader, connected(logins.admin) as admin:
        tables = await admin.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        for (table,) in tables:
            await reader.execute(f"SELECT FROM {table}")
            for statement in (f"DELETE FROM {table}", f"INSERT INTO {table} DEFAULT VALUES"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await reader.execute(statement)
    async with connected(logins.worker) as worker:
        for statement in ("DROP TABLE changes", "CREATE TABLE mine (x int)", "DELETE FROM tarsy_scoring_version"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await worker.execute(statement)


async def test_tables_of_a_later_revision(logins: Logins) -> None:
    """Work goes on after an upgrade, before the script of that version has run."""
    async with connected(logins.owner) as owner:
        await owner.execute("CREATE TABLE later (x int)")
    async with connected(logins.worker) as worker:
        await worker.execute("INSERT INTO later VALUES (1)")
    for url in logins.api, logins.readonly:
        async with connected(url) as connection:
            assert await connection.fetchval("SELECT x FROM later") == 1
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute("DELETE FROM later")
    async with connected(logins.admin) as admin:
        await admin.execute(ROLES)
        with pytest.raises(asyncpg.RaiseError, match="run tarsy-scoring migrate first"):
            await admin.execute("CREATE SCHEMA empty; SET search_path TO empty; " + ROLES)
