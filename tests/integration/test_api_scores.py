"""Scores over HTTP on a real database: every answer to POST, idempotency keys, races, and reading."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from pydantic_core import from_json, to_json

from api_site import Api, Sessions, open_api
from builders import (
    DEFAULT_CRITERIA,
    HASHES,
    OTHER_CRITERIA,
    Scoring,
    completion,
    connected,
    failure,
    rescore,
    session_completed,
    step,
)
from infrastructure import wait_until
from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal, SessionTooLarge, TimelineUnavailable
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.verdict import MissingTool
from tarsy_scoring.queue import idempotency
from tarsy_scoring.retention.erasure import erase
from tarsy_scoring.scores.shapes import ScoreDocument
from tarsy_scoring.timeline.model import FoundSession
from tarsy_scoring.web.api.scores import CriteriaDocument, History, Replies, Requests
from tarsy_scoring.web.documents import ProblemDocument

ENDED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FOUND = FoundSession("session-1", "kubernetes", "completed", ENDED)


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    """An API whose source knows `session-1`, which has ended."""
    async with open_api(database_url, Sessions(session_1=FOUND)) as opened:
        yield opened


def problem(answer: Any, status: int) -> ProblemDocument:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return ProblemDocument.model_validate_json(answer.text)


def document(answer: Any, status: int = 200) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    ScoreDocument.model_validate_json(answer.text)
    return answer.json()


async def count_scores(scoring: Scoring) -> int:
    return int(await scoring.value("SELECT count(*) FROM session_scores"))


# --- the table -----------------------------------------------------------------------------------------


async def nothing(_scoring: Scoring) -> None:
    """The session has no score."""


async def pending(scoring: Scoring) -> uuid.UUID:
    await scoring.accept(rescore(chain_id="kubernetes"))
    return await scoring.value("SELECT score_id FROM session_scores WHERE status = 'pending'")


async def in_progress(scoring: Scoring) -> uuid.UUID:
    return (await scoring.claimed()).score_id


async def completed(scoring: Scoring, **changes: Any) -> uuid.UUID:
    claimed = await scoring.claimed(**changes)
    await scoring.store.end(completion(claimed))
    return claimed.score_id


async def completed_twice(scoring: Scoring) -> uuid.UUID:
    await completed(scoring)
    return await completed(scoring, criteria=OTHER_CRITERIA)


async def completed_then_failed(scoring: Scoring) -> uuid.UUID:
    score_id = await completed(scoring)
    await failed(scoring)
    return score_id


async def failed(scoring: Scoring) -> None:
    await scoring.store.end(failure(await scoring.claimed()))


async def cancelled(scoring: Scoring) -> None:
    await scoring.leases.cancel((await scoring.claimed()).score_id, "bob")


async def beside(scoring: Scoring) -> None:
    """A judgement for another purpose, which is not the score of the session."""
    await scoring.accept(rescore(purpose="consistency", chain_id="kubernetes"))
    [claimed] = await scoring.claim()
    await scoring.store.end(completion(claimed))


Arranged = Callable[[Scoring], Awaitable[uuid.UUID | None]]
# The session's scores, the body, and the answer. `test_on_demand` has the whole table of decisions.
TABLE: list[tuple[Arranged, dict[str, Any], str]] = [
    (nothing, {}, "202 new"),
    (pending, {}, "202 that"),
    (in_progress, {"criteria": OTHER_CRITERIA}, "409"),
    (in_progress, {"force_rescore": True}, "409"),
    (completed_twice, {}, "200 that"),
    (completed_twice, {"force_rescore": True}, "202 new"),
    (completed, {"criteria": OTHER_CRITERIA}, "202 new"),
    (completed_then_failed, {}, "200 that"),
    (cancelled, {}, "202 new"),
    (beside, {}, "202 new"),
    (completed, {"purpose": "shadow"}, "202 new"),
    (in_progress, {"purpose": "shadow", "criteria": OTHER_CRITERIA}, "202 new"),
]


async def test_the_answer_follows_the_sessions_scores(api: Api) -> None:
    for has, body, expected in TABLE:
        await api.scoring.rows("TRUNCATE sessions, scoring_requests CASCADE")
        that = await has(api.scoring)
        before = await count_scores(api.scoring)
        answer = await api.ask(**body)
        case = f"{has.__name__} {body}"
        if expected == "409":
            problem(answer, 409)
            assert answer.json()["score_id"] == str(that), case
            assert await count_scores(api.scoring) == before
            assert "deferred" not in (await api.scoring.dispositions()).values()
            continue
        status, which = expected.split()
        shown = document(answer, int(status))
        assert (shown["score_id"] == str(that)) == (which == "that"), case
        assert await count_scores(api.scoring) == before + (which == "new"), case
        assert answer.headers["location"] == f"/api/v1/scoring/scores/{shown['score_id']}"
        if which == "new":
            assert (shown["status"], shown["score_triggered_by"], shown["attempt"]) == ("pending", "alice", 0)
            assert shown["criteria"] == body.get("criteria", DEFAULT_CRITERIA), case
            assert shown["purpose"] == body.get("purpose", "production"), case


# --- the session ---------------------------------------------------------------------------------------


async def test_a_session_that_the_source_cannot_confirm_stores_nothing(database_url: str) -> None:
    cases: list[tuple[Exception, int, str]] = [
        (SessionNotTerminal("it runs"), 400, "Session not terminal"),
        (SessionNotFound("no file /secret/path"), 404, "Unknown session"),
        (TimelineUnavailable("host db-7 is away"), 503, "Sessions unavailable"),
        (SessionTooLarge("session-1", 30_000_000, 16_777_216), 422, "Session too large"),
    ]
    for source, status, title in cases:
        async with open_api(database_url, Sessions(session_1=source)) as api:
            answer = await api.ask(key="key-1")
            assert problem(answer, status).title == title
            assert (str(source) in answer.text) == (title == "Session too large")  # it names the setting
            assert ("retry-after" in answer.headers) == (title == "Sessions unavailable")  # only this one passes
            for table in ("sessions", "scoring_requests", "session_scores", "kept_answers", "changes"):
                assert await api.scoring.value(f"SELECT count(*) FROM {table}") == 0, table


async def test_the_source_is_not_read_when_a_score_answers(database_url: str) -> None:
    source = Sessions(session_1=TimelineUnavailable("away"))
    async with open_api(database_url, source) as api:
        await completed(api.scoring)
        assert (await api.ask()).status_code == 200
        await pending(api.scoring)
        assert (await api.ask()).status_code == 202
        assert source.asked == []


async def test_without_a_source_only_announced_sessions_are_known(database_url: str) -> None:
    """What events said counts as well while the source is away."""
    async with open_api(database_url) as api:
        for session_id, status in (("ended", "failed"), ("runs", "in_progress")):
            await api.scoring.accept(session_completed(session_id, session_status=status))
        asked = [(await api.ask(session_id)).status_code for session_id in ("ended", "runs", "unknown")]

    async with open_api(database_url, Sessions(away=TimelineUnavailable("away"))) as api:
        await api.scoring.accept(session_completed("away", session_status="failed"))
        asked.append((await api.ask("away")).status_code)

    assert asked == [202, 400, 404, 202]


async def test_the_chain_of_the_source_overrides_the_events(api: Api) -> None:
    await api.scoring.accept(session_completed(chain_id="from-the-event", session_status="failed"))

    assert document(await api.ask(), 202)["chain_id"] == "kubernetes"


# --- malformed requests --------------------------------------------------------------------------------

ASK = "/api/v1/scoring/sessions/session-1/score"
BODIES: list[Any] = [
    {"force_rescore": "yes"},
    {"force_rescore": 1},
    {"force": True},  # may be a misspelt `force_rescore`
    {"criteria": ""},
    {"criteria": 7},
    {"purpose": "anchor"},
    {"purpose": "shadow", "reference": {"text": "the disk was full"}},
    {"criteria": "criteria-without-a-file"},
    {"reason": "a\0b"},
    {"reason": "x" * 4001},
    [],
    "score",
]
IDS = ["-dash-first", "a%20b", "x" * 256, "a%00", "ä", "a%2Fb", "%2F", "a%2Fscore"]
KEYS: list[list[tuple[str | bytes, str | bytes]]] = [
    *[[(b"Idempotency-Key", key.encode("latin-1"))] for key in ("x" * 256, "ä", " ", "a\tb")],
    [("Idempotency-Key", "one"), ("Idempotency-Key", "two")],
]


async def test_malformed_requests_change_nothing(api: Api) -> None:
    json_type = {"Content-Type": "application/json"}
    answers = [
        *[await api.client.post(ASK, json=body) for body in BODIES],
        *[
            await api.client.post(ASK, content=content, headers=json_type)
            for content in (rb'{"reason": "\ud800"}', b"{", b"\xff")
        ],
        await api.client.post(ASK, data={"force_rescore": "true"}),
        await api.client.post(f"{ASK}?force_rescore=true"),
        *[
            await api.client.request(method, f"/api/v1/scoring/sessions/{session_id}/score")
            for session_id in IDS
            for method in ("POST", "GET")
        ],
        *[await api.client.post(ASK, headers=headers) for headers in KEYS],
    ]

    for answer in answers:
        assert problem(answer, 422).errors, answer.text
    assert await count_scores(api.scoring) == 0


async def test_refusals_locate_the_error(api: Api) -> None:
    await api.ask(key="key-1")
    form = await api.client.post(ASK, data={"force_rescore": "true"})
    tail = await api.client.post(ASK, content='{"reason": null} planted', headers={"Content-Type": "application/json"})
    refused = {
        ("body", "criteria"): await api.ask(criteria="none-such"),
        ("header", "Idempotency-Key"): await api.ask(key="key-1", force_rescore=True),
        ("query", "cursor"): await api.get("sessions/session-1/scores", cursor="x"),
        ("query", "no_such"): await api.get("sessions/session-1/score", no_such=1),
        ("query", "limit"): await api.get("sessions/session-1/scores", limit=["1", "2"]),
        ("query", "?"): await api.client.get("/api/v1/scoring/sessions?%3Cb%3E=1"),
        ("body",): form,
        ("body", 17): tail,
    }

    for where, answer in refused.items():
        assert [fault.loc for fault in problem(answer, 422).errors or ()] == [list(where)]
    assert DEFAULT_CRITERIA in refused["body", "criteria"].text
    assert "Content-Type: application/json" in form.text
    assert "planted" not in tail.text


# --- keys ----------------------------------------------------------------------------------------------


async def test_a_repeat_gets_the_first_answer_again(api: Api) -> None:
    first = await api.ask(key="key-1", force_rescore=True)
    [claimed] = await api.scoring.claim()
    await api.scoring.store.end(completion(claimed))

    again = await api.ask(key="key-1", force_rescore=True, criteria=None, reason=None)

    assert document(first, 202)["status"] == "pending"
    assert (again.status_code, again.text, again.headers["location"]) == (202, first.text, first.headers["location"])
    assert await count_scores(api.scoring) == 1
    assert await api.scoring.value("SELECT arrivals FROM scoring_requests") == 2


async def test_a_key_with_another_request_is_refused(api: Api) -> None:
    await api.ask(key="key-1")

    for session_id, body in (("session-1", {"force_rescore": True}), ("session-1", {"reason": "b"}), ("session-2", {})):
        assert problem(await api.ask(session_id, key="key-1", **body), 422).title == "Key used before"
    assert await count_scores(api.scoring) == 1
    assert await api.scoring.value("SELECT arrivals FROM scoring_requests") == 1


async def test_keys_of_anonymous_callers_are_per_address(api: Api) -> None:
    app = api.app
    here, there = [
        httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(address, 1)), base_url="http://127.0.0.1")
        for address in ("127.0.0.2", "127.0.0.3")
    ]
    asked: dict[str, Any] = {"headers": {"Idempotency-Key": "key-1"}}
    path = "/api/v1/scoring/sessions/session-1/score"

    first = await here.post(path, json={"reason": "one"}, **asked)
    other = await there.post(path, json={"reason": "another"}, **asked)

    assert (first.status_code, other.status_code) == (202, 202)
    assert (await here.post(path, json={"reason": "one"}, **asked)).text == first.text
    problem(await here.post(path, json={"reason": "another"}, **asked), 422)


async def test_a_refusal_is_not_kept_under_its_key(api: Api) -> None:
    running = await in_progress(api.scoring)
    problem(await api.ask(key="key-1", force_rescore=True), 409)
    await api.cancel(running)

    assert document(await api.ask(key="key-1", force_rescore=True), 202)["status"] == "pending"


async def test_an_answer_is_kept_for_a_day(api: Api) -> None:
    first = document(await api.ask(key="key-1"), 202)
    [claimed] = await api.scoring.claim()
    await api.scoring.store.end(completion(claimed))
    age = "UPDATE kept_answers SET answered_at = now() - interval '24 hours' + $1::text::interval"
    await api.scoring.rows(age, "1 minute")
    assert (await api.ask(key="key-1")).json() == first
    await api.scoring.rows(age, "-1 second")

    again = await api.ask(key="key-1")

    assert (document(again, 200)["score_id"], again.json()["status"]) == (first["score_id"], "completed")


async def test_a_repeat_rebuilds_an_answer_whose_text_was_lost(api: Api) -> None:
    first = document(await api.ask(key="key-1"), 202)
    await api.scoring.rows("UPDATE kept_answers SET answer = NULL")

    again = [await api.ask(key="key-1") for _ in range(2)]

    assert [document(a, 202)["score_id"] for a in again] == [first["score_id"]] * 2
    assert again[0].text == again[1].text

    key, request_id = idempotency.Key("user:alice", "key-1", ""), uuid.UUID(first["request_id"])
    late = await idempotency.complete_answer(api.scoring.database, key, request_id, "of one that was slower")
    assert late == again[0].text


async def test_a_repeat_does_not_recreate_an_erased_session(api: Api) -> None:
    await api.ask(key="planted-key", reason="planted-reason")
    await erase(api.scoring.database, api.scoring.leases, "session-1", by="ada", relay_wait_s=0)

    for body in ({"reason": "planted-reason"}, {"force_rescore": True}):
        assert problem(await api.ask(key="planted-key", **body), 404).title == "Erased"
    assert await count_scores(api.scoring) == 0
    assert await api.scoring.value("SELECT count(*) FROM sessions") == 0
    assert "planted" not in str(await api.scoring.rows("SELECT * FROM scoring_requests"))
    assert document(await api.ask(key="planted-key", by="bob"), 202)["status"] == "pending"
    await erase(api.scoring.database, api.scoring.leases, "session-1", by="ada", relay_wait_s=0)
    assert document(await api.ask(key="another"), 202)["status"] == "pending"


# --- at the same time ----------------------------------------------------------------------------------


async def test_50_repeats_under_one_key_at_once(database_url: str) -> None:
    async with open_api(database_url, Sessions(session_1=FOUND), pool_size=20) as api:
        answers = await asyncio.gather(*(api.ask(key="key-1", force_rescore=True) for _ in range(50)))

        assert {(a.status_code, a.text) for a in answers} == {(202, answers[0].text)}
        assert await count_scores(api.scoring) == 1
        assert await api.scoring.value("SELECT arrivals FROM scoring_requests") == 50


async def test_the_answer_is_decided_under_the_lock_of_the_session(database_url: str) -> None:
    async with open_api(database_url, Sessions(session_1=FOUND)) as api, connected(database_url) as other:
        claimed = await api.scoring.claimed()
        held = other.transaction()
        await held.start()
        await other.execute("SELECT FROM sessions FOR UPDATE")
        asking = asyncio.create_task(api.ask())
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        await wait_until(lambda: other.fetchval(waits), 30, "the API to wait for the lock")
        await other.execute(
            "UPDATE session_scores SET status = 'completed', total_score = 50, completed_at = now(), "
            "lease_token = NULL, lease_owner = NULL, lease_expires_at = NULL"
        )
        await held.commit()

        shown = document(await asyncio.wait_for(asking, 30), 200)

        assert (shown["score_id"], shown["total_score"]) == (str(claimed.score_id), 50)


# --- the journal of changes ----------------------------------------------------------------------------


# --- reading -------------------------------------------------------------------------------------------


async def full(scoring: Scoring) -> uuid.UUID:
    """A completed score with everything that a document can show."""
    claimed = await scoring.claimed()
    await scoring.store.record(step(claimed, "analyzing_methodology", 1, cost_usd=0.003))
    await scoring.store.record(step(claimed, "identifying_missing_tools", 2, kind="missing_tools", reply="1. x"))
    tools = [MissingTool("read-file", "it was not read"), MissingTool("a-second", "nor this")]
    await scoring.store.end(completion(claimed, missing_tools=tools, failure_tags=["wrong_conclusion"]))
    await scoring.rows("INSERT INTO score_alternative_approaches VALUES ($1, 1, 'a', 'b')", claimed.score_id)
    await scoring.rows("INSERT INTO score_alternative_approaches VALUES ($1, 2, 'c', 'd')", claimed.score_id)
    await scoring.rows(
        "INSERT INTO score_alternative_approach_steps VALUES ($1, 1, 2, 'then'), ($1, 1, 1, 'first')", claimed.score_id
    )
    return claimed.score_id


async def test_a_score_with_all_its_parts(api: Api) -> None:
    score_id = await full(api.scoring)

    shown = document(await api.get(f"scores/{score_id}"))

    assert shown["missing_tools"] == [
        {"tool_name": "read-file", "rationale": "it was not read"},
        {"tool_name": "a-second", "rationale": "nor this"},
    ]
    assert shown["alternative_approaches"] == [
        {"name": "a", "description": "b", "steps": ["first", "then"]},
        {"name": "c", "description": "d", "steps": []},
    ]
    assert [(t["kind"], t["cost_usd"]) for t in shown["turns"]] == [("analysis", 0.003), ("missing_tools", 0.003)]
    assert "reply" not in shown["turns"][0]
    assert shown["scored_at"] == shown["completed_at"] is not None
    assert (await api.score_of()).json() == shown == await _of_reader(api, score_id)


async def _of_reader(api: Api, score_id: uuid.UUID) -> Any:
    return from_json(to_json(await api.scoring.reader.score(score_id)))


async def test_the_score_of_a_session(api: Api) -> None:
    none = problem(await api.score_of(), 404)
    assert none.title == "No score"
    assert "if the source has the session, POST" in none.detail

    await failed(api.scoring)
    await cancelled(api.scoring)
    shown = document(await api.score_of())
    assert (shown["status"], "latest_attempt" in shown) == ("cancelled", False)

    first = await completed(api.scoring)
    shown = document(await api.score_of())
    assert (shown["score_id"], "latest_attempt" in shown) == (str(first), False)

    running = await in_progress(api.scoring)
    shown = document(await api.score_of())
    assert shown["score_id"] == str(first)
    assert shown["latest_attempt"] == {"score_id": str(running), "status": "in_progress"}

    await api.cancel(running)
    assert document(await api.score_of())["latest_attempt"]["status"] == "cancelled"

    second = await completed(api.scoring)
    shown = document(await api.score_of())
    assert (shown["score_id"], "latest_attempt" in shown) == (str(second), False)
    assert "latest_attempt" not in document(await api.get(f"scores/{first}")), "a later score is no attempt at it"


async def test_the_history_is_paged(api: Api) -> None:
    made = [await completed(api.scoring) for _ in range(5)][::-1]
    # Two scores with the same time, which are ordered by their ids.
    await api.scoring.rows(
        "UPDATE session_scores s SET created_at = t.created_at FROM session_scores t "
        "WHERE t.score_id = $1 AND s.score_id = $2",
        *made[1:3],
    )
    made[1:3] = sorted(made[1:3], reverse=True)
    await beside(api.scoring)
    beside_id = await api.scoring.value("SELECT score_id FROM session_scores WHERE purpose = 'consistency'")

    for limit in (1, 2, 5, 6, 200):
        found, cursor = [], {}
        while True:
            page = await api.get("sessions/session-1/scores", limit=limit, **cursor)
            listed = History.model_validate_json(page.text)
            found += [uuid.UUID(s.score_id) for s in listed.scores]
            assert len(listed.scores) <= limit
            if listed.next_cursor is None:
                break
            cursor = {"cursor": listed.next_cursor}
            if limit == 2 and len(found) == 2:
                await api.cancel(newer := await in_progress(api.scoring))
        assert found == ([newer] if limit > 2 else []) + [beside_id, *made]

    only = await api.get("sessions/session-1/scores", purpose="consistency")
    assert [s["score_id"] for s in only.json()["scores"]] == [str(beside_id)]


async def test_an_invalid_or_foreign_cursor_is_refused(api: Api) -> None:
    for _ in range(3):
        await completed(api.scoring)
    cursor = (await api.get("sessions/session-1/scores", limit=1)).json()["next_cursor"]

    for made_up in ("x", "%%%", "MjAyNi0wMS0wMg", "ä", "a" * 201, "MDAwMS0wMS0wMVQwMDowMDowMCsxNDowMCB4"):
        problem(await api.get("sessions/session-1/scores", cursor=made_up), 422)
    for path, purpose in (("session-2", {}), ("session-1", {"purpose": "production"})):
        refused = await api.get(f"sessions/{path}/scores", cursor=cursor, **purpose)
        assert problem(refused, 422).errors
    assert len((await api.get("sessions/session-1/scores", cursor=cursor)).json()["scores"]) == 2


async def test_turns_with_their_replies(api: Api) -> None:
    score_id = await full(api.scoring)

    answer = await api.get(f"scores/{score_id}/turns")

    turns = Replies.model_validate_json(answer.text).turns
    assert [(t.ordinal, t.kind, t.reply, t.attempt) for t in turns] == [
        (1, "analysis", "Well reasoned.\n\n67", 1),
        (2, "missing_tools", "1. x", 1),
    ]
    assert not {"nonce", "context_hash", "asked_hash"} & answer.json()["turns"][0].keys()


async def test_unknown_and_malformed_score_ids_are_refused(api: Api) -> None:
    for path in ("scores/{}", "scores/{}/turns", "scores/{}/labels"):
        problem(await api.get(path.format(uuid.uuid4())), 404)
        problem(await api.get(path.format("7")), 422)
    problem(await api.cancel(uuid.uuid4()), 404)
    problem(await api.cancel("7"), 422)


async def test_dispositions_are_found_by_event_id_or_key(api: Api) -> None:
    event_id = "alerts/2026 #7?&ä"
    await api.scoring.accept(session_completed(event_id=event_id))
    await api.scoring.accept(session_completed("session-2", event_id=event_id, session_status="failed"))

    answer = await api.client.get("/api/v1/scoring/requests/alerts%2F2026%20%237%3F%26%C3%A4")

    found = Requests.model_validate_json(answer.text).requests
    assert [(r.event_id, r.session_id, r.disposition) for r in found] == [
        (event_id, "session-1", "accepted"),
        (event_id, "session-2", "status_not_scored"),
    ]
    assert (found[0].score_id is None, found[1].score_id) == (False, None)
    first = document(await api.ask(key="key/1 a"), 202)
    by_key = Requests.model_validate_json((await api.get("requests/key%2F1 a")).text).requests
    assert [str(r.score_id) for r in by_key] == [first["score_id"]]
    problem(await api.get("requests/unknown-event"), 404)
    problem(await api.get("requests/a%00b"), 422)
    problem(await api.get("requests/" + "x" * 256), 422)


async def test_criteria_by_hash(api: Api) -> None:
    await api.scoring.store.keep_criteria("hash-default", DEFAULT_CRITERIA, {"prompt": "Judge it."})
    await api.scoring.store.keep_criteria("hash-older", DEFAULT_CRITERIA, {"prompt": "Judge!"})
    shipped = load_criteria().get(OTHER_CRITERIA)

    kept, older, unused = [
        CriteriaDocument.model_validate_json((await api.get(f"criteria/{h}")).text)
        for h in ("hash-default", "hash-older", shipped.criteria_hash)
    ]

    assert HASHES[DEFAULT_CRITERIA] == kept.criteria_hash
    assert (kept.name, kept.content, kept.is_current) == (DEFAULT_CRITERIA, {"prompt": "Judge it."}, True)
    assert (older.content, older.is_current) == ({"prompt": "Judge!"}, False)
    assert (unused.name, unused.content, unused.first_used_at) == (OTHER_CRITERIA, shipped.content, None)
    assert kept.first_used_at is not None
    problem(await api.get("criteria/none"), 404)


# --- cancel --------------------------------------------------------------------------------------------


async def test_cancel(api: Api) -> None:
    for has in (pending, in_progress):
        score_id = await has(api.scoring)
        shown = document(await api.cancel(str(score_id), by="carol"))
        assert (shown["score_id"], shown["status"], shown["error_kind"]) == (str(score_id), "cancelled", "cancelled")
        assert shown["error_message"] == "cancelled by carol"
        assert (await api.scoring.events())[-1] == "failed"

    answer = await api.cancel(str(await completed_then_failed(api.scoring)))
    problem(answer, 409)
    assert answer.json()["score_status"] == "completed"
