"""The audit record: every change, erasure and export with its caller, door and address; reads are lines of the log."""

import asyncio
import re
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from api_site import Api, open_api
from builders import Scoring, completion, rescore, session_completed
from tarsy_scoring.cli import cli
from tarsy_scoring.queue.admission import Priority

AUDIT = "SELECT changed_by, change, through, address, session_id, details FROM changes ORDER BY change_id"


@pytest.fixture
async def api(database_url: str) -> Any:
    async with open_api(database_url) as opened:
        yield opened


async def recorded(scoring: Scoring) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in await scoring.rows(AUDIT)]


async def command(scoring: Scoring, *arguments: str) -> None:
    variables = {"SCORING_DATABASE_URL": scoring.url, "USER": "ada", "OPENAI_API_KEY": "k"}
    done = await asyncio.to_thread(CliRunner().invoke, cli, arguments, env=variables)
    assert done.exit_code == 0, (arguments, done.output, done.exception)


async def scored(api: Api) -> str:
    """A completed score of session-1 that misses the tool `logs`; returns its id."""
    await api.scoring.accept(rescore("session-1", requested_by="mallory", priority=Priority.PEOPLE))
    [claimed] = await api.scoring.claim()
    await api.scoring.store.end(completion(claimed))
    return str(claimed.score_id)


async def test_changes_over_http_are_recorded_with_door_and_address(api: Api) -> None:
    score_id = await scored(api)
    as_bob = {"X-Forwarded-User": "bob", "X-Forwarded-For": "198.51.100.1, 192.0.2.7"}
    for path, body in (
        (f"scores/{score_id}/labels", {"agrees": True}),
        ("sessions/session-1/score", {"force_rescore": True}),
    ):
        answer = await api.client.post(f"/api/v1/scoring/{path}", json=body, headers=as_bob)
        assert answer.is_success, answer.text
    open_score = answer.json()["score_id"]
    assert (await api.client.post(f"/api/v1/scoring/scores/{open_score}/cancel", headers=as_bob)).is_success
    assert (await api.get("export", format="csv", q="session-1")).is_success

    bob = "bob", "proxy", "192.0.2.7"  # the address that the proxy added
    assert await recorded(api.scoring) == [
        *((bob[0], change, *bob[1:], "session-1", None) for change in ("label", "rescore", "cancel")),
        ("alice", "export", "proxy", "127.0.0.1", None, {"format": "csv", "filters": ["q"]}),
    ]


async def test_commands_are_recorded_with_user_and_host(scoring: Scoring) -> None:
    """Also those that only change a table of their own, and those whose change is gone afterwards."""
    await scoring.accept(session_completed("one"), session_completed("two"))
    for claimed in await scoring.claim(2):
        await scoring.store.end(completion(claimed))
    for arguments in (
        ("pause", "--chain", "kubernetes", "--reason", "because of one"),
        ("pause", "--list"),
        ("resume", "--chain", "kubernetes"),
        ("rescore", "one"),
        ("anchors", "add", "two", "--yes"),
        ("anchors", "remove", "two"),
        ("export", "--prefix", "one"),
        ("prune",),
        ("prune", "--yes"),
        ("erase", "one"),
        ("erase", "one", "--yes"),
        ("erase", "--person", "bob", "--yes"),
    ):
        await command(scoring, *arguments)

    rows = await recorded(scoring)
    assert {(by, through, address, session) for by, _, through, address, session, _ in rows} == {
        ("ada", "cli", socket.gethostname(), None)
    }
    made = [change for _, change, *_ in rows]
    wanted = "pause resume order anchor_add anchor_remove export prune cancel erase erase_person"
    assert made == wanted.split()
    details = dict(zip(made, (row[-1] for row in rows), strict=True))
    assert details["pause"] == {"chain": "kubernetes", "provider": None}
    assert re.fullmatch("[0-9a-f]{64}", details["erase"]["session_hash"])
    assert not re.search(r"\bone\b|\bbob\b", str(rows))


async def test_reads_are_logged_with_the_caller(api: Api) -> None:
    score_id = await scored(api)
    paths = ["/sessions/session-1", f"/api/v1/scoring/scores/{score_id}/turns"]
    with capture_logs() as lines:
        for path in paths:
            await api.client.get(path)
    requests = [line for line in lines if line["event"] == "api.request"]
    assert [r["path"] for r in requests] == paths
    assert {(r["by"], r["through"], r["address"]) for r in requests} == {("alice", "proxy", "127.0.0.1")}


async def test_a_token_is_the_door_of_its_caller(database_url: str, tmp_path: Path, monkeypatch: Any) -> None:
    digest = "c775e7b757ede630cd0aa1113bd102661ab38829ca52a6422ab782862f268646"  # of 1234567890
    (tmp_path / "tokens.yaml").write_text(f"[{{name: pipeline, scope: score, sha256: {digest}}}]")
    from tarsy_scoring.config.settings import Settings

    monkeypatch.setattr("api_site.SETTINGS", Settings(api_tokens_file=tmp_path / "tokens.yaml"))
    async with open_api(database_url) as api:
        score_id = await scored(api)
        headers = httpx.Headers({"Authorization": "Bearer 1234567890"})
        path = f"/api/v1/scoring/scores/{score_id}/labels"
        answer = await api.client.post(path, json={"agrees": True}, headers=headers)
        assert answer.is_success, answer.text
        [row] = await recorded(api.scoring)
        assert row[:4] == ("pipeline", "label", "token pipeline", "127.0.0.1")
