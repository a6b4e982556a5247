"""The routes under TARSy's own addresses: TARSy's keys, status codes and error bodies."""

import hashlib
import json
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from api_site import Api, Sessions, open_api
from builders import HASHES, OTHER_CRITERIA, completion, failure, rescore
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal, SessionTooLarge, TimelineUnavailable
from tarsy_scoring.timeline.model import FoundSession
from tarsy_scoring.web.api.tarsy import Started, TarsyError, TarsyScore

KEYS = {
    *("score_id", "total_score", "score_analysis", "tool_improvement_report", "failure_tags", "prompt_hash"),
    *("score_triggered_by", "status", "stage_id", "started_at", "completed_at", "error_message"),
}
PATH = "/api/v1/sessions/session-1/score"
TOO_LARGE = SessionTooLarge("session-1", 30_000_000, 16_777_216)
FOUND = FoundSession("session-1", "kubernetes", "completed", datetime(2026, 1, 2, tzinfo=UTC))


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url, Sessions(session_1=FOUND)) as opened:
        yield opened


def refused(answer: Any, status: int, message: str) -> None:
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    assert answer.json() == {"message": message}
    TarsyError.model_validate_json(answer.text)


async def test_post_requests_a_score(api: Api) -> None:
    answer = await api.client.post(PATH, headers={"X-Forwarded-User": "carol"}, content=b"not JSON")

    assert (answer.status_code, answer.headers["content-type"]) == (202, "application/json")
    score_id = uuid.UUID(Started.model_validate_json(answer.text).score_id)
    assert answer.json() == {"score_id": str(score_id)}
    row = await api.scoring.score(score_id)
    assert (row["status"], row["score_triggered_by"], row["priority"]) == ("pending", "carol", 0)


async def test_post_always_scores_again(api: Api) -> None:
    claimed = await api.scoring.claimed()
    await api.scoring.store.end(completion(claimed))

    answer = await api.client.post(PATH)

    assert answer.status_code == 202
    assert answer.json()["score_id"] != str(claimed.score_id)


async def test_a_repeat_under_its_key_gets_the_first_answer(api: Api) -> None:
    key = {"Idempotency-Key": "key-1", "X-Forwarded-User": "carol"}
    first = await api.client.post(PATH, headers=key)
    await api.scoring.store.end(completion((await api.scoring.claim())[0]))

    again = await api.client.post(PATH, headers=key)
    ours = await api.ask(by="carol", key="key-1", force_rescore=True)
    other = await api.ask(by="carol", key="key-1")

    assert (again.status_code, again.text) == (first.status_code, first.text)
    assert (ours.status_code, ours.json()["score_id"]) == (202, first.json()["score_id"])
    assert other.status_code == 422
    assert await api.scoring.value("SELECT count(*) FROM session_scores") == 1


async def test_post_conflicts_with_an_open_score(api: Api) -> None:
    await api.scoring.accept(rescore(criteria=OTHER_CRITERIA))
    refused(await api.client.post(PATH), 409, "scoring already in progress for this session")
    await api.scoring.claim()
    refused(await api.client.post(PATH), 409, "scoring already in progress for this session")


async def test_sessions_that_are_refused(database_url: str) -> None:
    cases: list[tuple[Exception, int, str]] = [
        (SessionNotFound("x"), 404, "resource not found"),
        (SessionNotTerminal("x"), 409, "session is not in a terminal state"),
        (TOO_LARGE, 422, str(TOO_LARGE)),
        (TimelineUnavailable("x"), 503, "scoring service is not available"),
    ]
    for source, status, message in cases:
        async with open_api(database_url, Sessions(session_1=source)) as api:
            refused(await api.client.post(PATH), status, message)
            for method in ("POST", "GET"):
                malformed = await api.client.request(method, "/api/v1/sessions/a%20b/score")
                refused(malformed, 404, "resource not found")


async def test_refusals_before_a_route_have_tarsys_error_body(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens.json"
    entries = [("reads", "read"), ("scores", "score")]
    tokens.write_text(
        json.dumps([{"name": t, "sha256": hashlib.sha256(t.encode()).hexdigest(), "scope": s} for t, s in entries])
    )
    monkeypatch.setattr("api_site.SETTINGS", Settings(api_tokens_file=tokens, api_rate_per_minute=3))
    reads, scores = ({"Authorization": f"Bearer {token}"} for token in ("reads", "scores"))
    large: dict[str, Any] = {"content": b"x" * 100_000, "headers": scores}
    async with open_api(database_url, Sessions(session_1=FOUND)) as api:
        answers = [
            await api.client.get(PATH),
            await api.client.post(PATH, headers=reads),
            await api.client.get("/api/v1/sessions/a%2Fb/score", headers=reads),
            await api.client.delete(PATH, headers=scores),
            await api.client.post(PATH, **large),
            await api.client.post(PATH, headers=scores | {"Content-Length": "1", "Transfer-Encoding": "chunked"}),
            await api.client.post(PATH, headers=scores, content=b"1"),
            await api.client.post(PATH, headers=scores),
        ]

    assert [a.status_code for a in answers] == [401, 403, 404, 405, 413, 400, 202, 429]
    for answer in answers:
        if answer.status_code != 202:
            assert answer.headers["content-type"] == "application/json"
            assert TarsyError.model_validate_json(answer.text).message


async def test_without_a_database_the_answer_is_503() -> None:
    async with open_api("postgresql://nobody@127.0.0.1:9/none", Sessions(session_1=FOUND)) as api:
        for method in ("POST", "GET"):
            answer = await api.client.request(method, PATH)
            refused(answer, 503, "scoring service is not available")
            assert int(answer.headers["retry-after"]) >= 1


async def test_get_has_a_completed_score(api: Api) -> None:
    claimed = await api.scoring.claimed()
    await api.scoring.store.end(
        completion(claimed, missing_tools_analysis="1. read-file", failure_tags=["wrong_conclusion"])
    )

    answer = await api.client.get(PATH)

    assert answer.status_code == 200
    shown = answer.json()
    TarsyScore.model_validate_json(answer.text)
    row = await api.scoring.score(claimed.score_id)
    assert shown.keys() == KEYS
    assert shown | {"started_at": 0, "completed_at": 0} == {
        "score_id": str(claimed.score_id),
        "total_score": 67,
        "score_analysis": "Well reasoned.",
        "tool_improvement_report": "1. read-file",
        "failure_tags": ["wrong_conclusion"],
        "prompt_hash": HASHES[claimed.criteria or ""],
        "score_triggered_by": "alice",
        "status": "completed",
        "stage_id": None,
        "started_at": 0,
        "completed_at": 0,
        "error_message": None,
    }
    assert datetime.fromisoformat(shown["started_at"]) == row["started_at"]
    assert datetime.fromisoformat(shown["completed_at"]) == row["completed_at"]


async def test_get_has_the_newest_production_score_of_any_status(api: Api) -> None:
    assert (await api.client.get(PATH)).status_code == 404
    refused(await api.client.get(PATH), 404, "resource not found")
    await api.scoring.store.end(completion(await api.scoring.claimed()))
    claimed = await api.scoring.claimed()
    await api.scoring.store.end(failure(claimed))
    await api.scoring.accept(rescore(purpose="shadow"))

    shown = (await api.client.get(PATH)).json()

    assert (shown["score_id"], shown["status"]) == (str(claimed.score_id), "failed")
    assert (shown["total_score"], shown["failure_tags"]) == (None, None)
    assert shown["error_message"] == "the judge refused to answer"
