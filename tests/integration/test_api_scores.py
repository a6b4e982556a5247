"""Scores over HTTP on a real database: the table of POST to the letter, keys, races, and everything that is read."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

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
    policy,
    rescore,
    session_completed,
    step,
)
from infrastructure import wait_until
from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal, TimelineUnavailable
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.verdict import MissingTool
from tarsy_scoring.queue import idempotency
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.records.erasure import erase
from tarsy_scoring.timeline.files import BrokenSessionFile
from tarsy_scoring.timeline.model import FoundSession
from tarsy_scoring.web.api.scores import CriteriaDocument, History, Replies, Requests
from tarsy_scoring.web.documents import ProblemDocument, ScoreDocument

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


async def timed_out(scoring: Scoring) -> None:
    await scoring.store.end(failure(await scoring.claimed(), status="timed_out", error_kind="deadline_passed"))


async def cancelled(scoring: Scoring) -> None:
    await scoring.leases.cancel((await scoring.claimed()).score_id, "bob")


async def beside(scoring: Scoring) -> None:
    """A judgement for another purpose is no score of the session."""
    await scoring.accept(rescore(purpose="consistency", chain_id="kubernetes"))
    [claimed] = await scoring.claim()
    await scoring.store.end(completion(claimed))


Arranged = Callable[[Scoring], Awaitable[uuid.UUID | None]]


@pytest.mark.parametrize(
    ("has", "unforced", "forced"),
    [
        pytest.param(nothing, "202 new", "202 new", id="no score"),
        pytest.param(pending, "202 that", "409", id="a pending one"),
        pytest.param(in_progress, "202 that", "409", id="one in progress"),
        pytest.param(completed, "200 that", "202 new", id="a completed one"),
        pytest.param(completed_twice, "200 that", "202 new", id="two completed ones"),
        pytest.param(completed_then_failed, "200 that", "202 new", id="a completed and a failed one"),
        pytest.param(failed, "202 new", "202 new", id="a failed one"),
        pytest.param(timed_out, "202 new", "202 new", id="a timed-out one"),
        pytest.param(cancelled, "202 new", "202 new", id="a cancelled one"),
        pytest.param(beside, "202 new", "202 new", id="a consistency judgement"),
    ],
)
@pytest.mark.parametrize("force", [False, True], ids=["as it is", "forced"])
async def test_the_table(api: Api, has: Arranged, unforced: str, forced: str, force: bool) -> None:
    """Status and score for everything that a session can have."""
    that = await has(api.scoring)
    before = await count_scores(api.scoring)

    answer = await api.ask(force_rescore=force)

    expected = forced if force else unforced
    if expected == "409":
        problem(answer, 409)
        assert answer.json()["score_id"] == str(that)
        assert await count_scores(api.scoring) == before
        return
    status, which = expected.split()
    shown = document(answer, int(status))
    assert (shown["score_id"] == str(that)) == (which == "that")
    assert await count_scores(api.scoring) == before + (which == "new")
    assert answer.headers["location"] == f"/api/v1/scoring/scores/{shown['score_id']}"
    if which == "new":
        assert (shown["status"], shown["score_triggered_by"], shown["attempt"]) == ("pending", "alice", 0)


@pytest.mark.parametrize(
    ("has", "criteria", "expected"),
    [
        pytest.param(nothing, OTHER_CRITERIA, "202 new", id="no score"),
        pytest.param(in_progress, DEFAULT_CRITERIA, "202 that", id="one runs under these"),
        pytest.param(in_progress, OTHER_CRITERIA, "409", id="one runs under others"),
        pytest.param(completed, DEFAULT_CRITERIA, "200 that", id="a completed one under these"),
        pytest.param(completed, OTHER_CRITERIA, "202 new", id="a completed one under others"),
    ],
)
async def test_under_criteria(api: Api, has: Arranged, criteria: str, expected: str) -> None:
    """Only scores under the named criteria count, and one that runs under others is in the way; nothing is deferred."""
    that = await has(api.scoring)

    answer = await api.ask(criteria=criteria)

    if expected == "409":
        assert criteria in problem(answer, 409).detail
        assert await count_scores(api.scoring) == 1
        assert "deferred" not in (await api.scoring.dispositions()).values()
        return
    status, which = expected.split()
    shown = document(answer, int(status))
    assert (shown["score_id"] == str(that)) == (which == "that")
    assert shown["criteria"] == criteria


async def test_a_request_is_kept_with_its_asker_and_reason(api: Api) -> None:
    """As every request: who asked, why, what became of it, and under which chain."""
    shown = document(await api.ask(by="carol", reason="the runbook was wrong", force_rescore=True), 202)

    [request] = await api.scoring.rows("SELECT * FROM scoring_requests")
    assert str(request["request_id"]) == shown["request_id"]
    assert (request["source"], request["requested_by"], request["priority"]) == ("api", "carol", 0)
    assert (request["reason"], request["force"], request["disposition"]) == ("the runbook was wrong", True, "accepted")
    assert await api.scoring.events() == ["queued"]


async def test_a_person_who_asks_moves_a_pending_score_ahead(api: Api) -> None:
    """Whoever waits for a bulk score by asking for it is served first."""
    await api.scoring.accept(rescore(priority=2))

    document(await api.ask(), 202)

    assert await api.scoring.value("SELECT priority FROM session_scores") == 0


async def test_a_body_may_be_left_out(api: Api) -> None:
    """Nothing said is everything by default."""
    answer = await api.client.post("/api/v1/scoring/sessions/session-1/score")

    assert document(answer, 202)["score_triggered_by"] == "api-client"


# --- the session ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "status", "title"),
    [
        pytest.param(SessionNotTerminal("it runs"), 400, "Session not terminal", id="it runs"),
        pytest.param(SessionNotFound("no file /secret/path"), 404, "Unknown session", id="there is none"),
        pytest.param(TimelineUnavailable("host db-7 is away"), 503, "Sessions unavailable", id="the source is away"),
        pytest.param(BrokenSessionFile("/secret/path: no JSON"), 503, "Session unreadable", id="its file is broken"),
    ],
)
async def test_a_session_that_nobody_vouches_for(database_url: str, source: Exception, status: int, title: str) -> None:
    """Refused with the reason and without a trace, whatever the words of the source."""
    async with open_api(database_url, Sessions(session_1=source)) as api:
        answer = await api.ask(key="key-1")

        assert problem(answer, status).title == title
        assert str(source) not in answer.text
        assert ("retry-after" in answer.headers) == (title == "Sessions unavailable")  # only that passes by itself
        for table in ("sessions", "scoring_requests", "session_scores", "kept_answers", "changes"):
            assert await api.scoring.value(f"SELECT count(*) FROM {table}") == 0, table


async def test_the_source_is_not_asked_where_a_score_answers(database_url: str) -> None:
    """A score vouches for its session: reading it back works while the source is away."""
    source = Sessions(session_1=TimelineUnavailable("away"))
    async with open_api(database_url, source) as api:
        await completed(api.scoring)
        assert (await api.ask()).status_code == 200
        await pending(api.scoring)
        assert (await api.ask()).status_code == 202
        assert source.asked == []


async def test_what_an_event_said_counts_while_the_source_is_away(database_url: str) -> None:
    """A session that is known to have ended can be asked for; the worker waits for the source."""
    async with open_api(database_url, Sessions(session_1=TimelineUnavailable("away"))) as api:
        await api.scoring.accept(session_completed(session_status="failed"))

        assert document(await api.ask(), 202)["chain_id"] == "kubernetes"


async def test_a_session_that_was_deleted_is_not_scored_again(database_url: str) -> None:
    """Its score can still be read, and a new one is refused."""
    async with open_api(database_url, Sessions(session_1=SessionNotFound("deleted"))) as api:
        await completed(api.scoring)

        assert (await api.ask()).status_code == 200
        problem(await api.ask(force_rescore=True), 404)


@pytest.mark.parametrize(
    ("says", "status"),
    [
        pytest.param(None, 404, id="nobody spoke of it"),
        pytest.param(session_completed(session_status="failed"), 202, id="it has ended"),
        pytest.param(session_completed(session_status="in_progress"), 400, id="it has a status that is no end"),
    ],
)
async def test_without_a_source(database_url: str, says: Any, status: int) -> None:
    """Sessions that events spoke of are known, and no others."""
    async with open_api(database_url) as api:
        if says is not None:
            await api.scoring.accept(says)

        assert (await api.ask()).status_code == status


async def test_the_source_says_what_is_not_known(api: Api) -> None:
    """Chain, status and end come from it, and the criteria of the chain are bound at once."""
    shown = document(await api.ask(), 202)

    [session] = await api.scoring.rows("SELECT * FROM sessions")
    assert (session["chain_id"], session["status"], session["completed_at"]) == ("kubernetes", "completed", ENDED)
    assert (shown["chain_id"], shown["criteria"]) == ("kubernetes", DEFAULT_CRITERIA)


async def test_an_attempt_tells_what_nobody_had_said(api: Api) -> None:
    """Status and end of a session are learned where its timeline is read; what is known already stays."""
    for session_id, known in (("session-1", {}), ("session-2", {"session_status": "failed", "completed_at": ENDED})):
        claimed = await api.scoring.claimed(session_id, **known)
        bound = await api.scoring.store.bind(
            claimed,
            chain_id="kubernetes",
            alert_type=None,
            labels={},
            session_status="timed_out",
            completed_at=ENDED + timedelta(days=1),
            criteria=DEFAULT_CRITERIA,
            criteria_hash="h",
        )
        assert bound.session_status == known.get("session_status", "timed_out")

    sessions = await api.scoring.rows("SELECT status, completed_at FROM sessions ORDER BY session_id")
    assert [tuple(session.values()) for session in sessions] == [
        ("timed_out", ENDED + timedelta(days=1)),
        ("failed", ENDED),
    ]


async def test_an_events_chain_goes_before_the_sources(api: Api) -> None:
    """The order of the specification: the event, what is stored, the source."""
    await api.scoring.accept(session_completed(chain_id="from-the-event", session_status="failed"))

    assert document(await api.ask(), 202)["chain_id"] == "from-the-event"


# --- what is malformed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {"force_rescore": "yes"},
        {"force_rescore": 1},
        {"force": True},
        {"criteria": ""},
        {"criteria": 7},
        {"criteria": "criteria-nobody-has"},
        {"reason": "a\0b"},
        {"reason": "x" * 4001},
        [],
        "score",
    ],
    ids=lambda body: str(body)[:30],
)
async def test_malformed_bodies(api: Api, body: Any) -> None:
    """422, and nothing happens; a key that means nothing is refused, for it may be a misspelt `force_rescore`."""
    answer = await api.client.post("/api/v1/scoring/sessions/session-1/score", json=body)

    problem(answer, 422)
    assert await count_scores(api.scoring) == 0


async def test_half_a_surrogate_pair(api: Api) -> None:
    """JSON can spell what no database takes: 422."""
    answer = await api.client.post(
        "/api/v1/scoring/sessions/session-1/score",
        content=rb'{"reason": "\ud800"}',
        headers={"Content-Type": "application/json"},
    )

    problem(answer, 422)


@pytest.mark.parametrize(
    "session_id", ["-dash-first", "a%20b", "a%0A", "x" * 256, "a%00", "ä", "a%2Fb", "%2F", "a%2Fscore"]
)
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_malformed_session_ids(api: Api, session_id: str, method: str) -> None:
    """No session has such an id: 422."""
    problem(await api.client.request(method, f"/api/v1/scoring/sessions/{session_id}/score"), 422)


async def test_unknown_criteria_are_named_with_those_there_are(api: Api) -> None:
    """The caller hears what would have been right, and not what was sent."""
    detail = problem(await api.ask(criteria="<script>"), 422).detail

    assert DEFAULT_CRITERIA in detail
    assert "script" not in detail


async def test_the_database_is_away() -> None:
    """503 with the time to try again, at every address, and at once."""
    async with open_api("postgresql://nobody@127.0.0.1:9/none", Sessions(session_1=FOUND)) as api, asyncio.timeout(30):
        score_id = uuid.uuid4()
        answers = [
            await api.ask(key="key-1"),
            await api.cancel(score_id),
            await api.score_of(),
            *[
                await api.get(p)
                for p in (f"scores/{score_id}", f"scores/{score_id}/turns", "sessions/session-1/scores")
            ],
            *[await api.get(p) for p in ("requests/event-1", "criteria/hash-1")],
        ]

    assert len(answers) == 8
    for answer in answers:
        problem(answer, 503)
        assert int(answer.headers["retry-after"]) >= 1


# --- keys ----------------------------------------------------------------------------------------------


async def test_a_repeat_gets_the_first_answer_again(api: Api) -> None:
    """To the letter, also when the score has moved on, and without a second score."""
    first = await api.ask(key="key-1", force_rescore=True)
    [claimed] = await api.scoring.claim()
    await api.scoring.store.end(completion(claimed))

    again = await api.ask(key="key-1", force_rescore=True)

    assert document(first, 202)["status"] == "pending"
    assert (again.status_code, again.text, again.headers["location"]) == (202, first.text, first.headers["location"])
    assert await count_scores(api.scoring) == 1
    assert await api.scoring.value("SELECT arrivals FROM scoring_requests") == 2


async def test_defaults_spelt_out_are_the_same_question(api: Api) -> None:
    """What was asked counts, and not how it was written."""
    first = await api.ask(key="key-1")
    again = await api.ask(key="key-1", force_rescore=False, criteria=None, reason=None)

    assert (again.status_code, again.text) == (202, first.text)


@pytest.mark.parametrize(
    ("session_id", "body"),
    [("session-1", {"force_rescore": True}), ("session-1", {"reason": "other"}), ("session-2", {})],
    ids=["another force", "another reason", "another session"],
)
async def test_a_key_for_another_question(api: Api, session_id: str, body: Any) -> None:
    """422, and nothing happens."""
    await api.ask(key="key-1")

    assert problem(await api.ask(session_id, key="key-1", **body), 422).title == "Key used before"
    assert await count_scores(api.scoring) == 1
    assert await api.scoring.value("SELECT arrivals FROM scoring_requests") == 1


async def test_keys_are_per_caller(api: Api) -> None:
    """The same key of somebody else is another key."""
    first = document(await api.ask(key="key-1", by="alice"), 202)
    [claimed] = await api.scoring.claim()
    await api.scoring.store.end(completion(claimed))

    second = document(await api.ask(key="key-1", by="bob", force_rescore=True), 202)

    assert first["score_id"] != second["score_id"]


async def test_keys_of_the_unnamed_are_per_address(api: Api) -> None:
    """Two programs that nobody names may both begin with `key-1`; each gets its own first answer again."""
    app = cast(Any, api.client)._transport.app
    here, there = [
        httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(address, 1)), base_url="http://127.0.0.1")
        for address in ("127.0.0.1", "127.0.0.2")
    ]
    asked: dict[str, Any] = {"headers": {"Idempotency-Key": "key-1"}}
    path = "/api/v1/scoring/sessions/session-1/score"

    first = await here.post(path, json={"reason": "one"}, **asked)
    other = await there.post(path, json={"reason": "another"}, **asked)

    assert (first.status_code, other.status_code) == (202, 202)
    assert (await here.post(path, json={"reason": "one"}, **asked)).text == first.text
    problem(await here.post(path, json={"reason": "another"}, **asked), 422)


async def test_a_repeat_is_answered_though_its_criteria_have_gone(api: Api) -> None:
    """The first answer stands for its day; asked anew, they are unknown."""
    first = await api.ask(key="key-1", criteria=OTHER_CRITERIA)
    api.scoring.inbox.policy = policy(hashes={DEFAULT_CRITERIA: HASHES[DEFAULT_CRITERIA]})

    again = await api.ask(key="key-1", criteria=OTHER_CRITERIA)

    assert (again.status_code, again.text) == (202, first.text)
    assert problem(await api.ask(key="key-2", criteria=OTHER_CRITERIA), 422).title == "Unknown criteria"


async def test_two_that_keep_answers_at_once(api: Api) -> None:
    """Each renews a key of its own that is a day old, which the other one might let go of: nobody waits in a ring."""
    await completed(api.scoring)
    score_id = await api.scoring.value("SELECT score_id FROM session_scores")
    await api.scoring.rows(
        "INSERT INTO kept_answers SELECT 'alice', 'key-' || n, 'h', 'new', $1, gen_random_uuid(), '{}', "
        "now() - interval '2 days' FROM generate_series(1, 2) n",
        score_id,
    )
    together = asyncio.Barrier(2)

    class InStep:
        """A connection on which nobody goes on until both have come so far."""

        def __init__(self, connection: Any) -> None:
            self._connection = connection

        async def execute(self, *arguments: Any) -> None:
            await self._connection.execute(*arguments)
            await together.wait()

    async def keep(number: int) -> None:
        key = idempotency.Key("alice", f"key-{number}", "hash")
        database = api.scoring.database
        await database.once(
            lambda c: idempotency.keep(database, InStep(c), key, "new", score_id, uuid.uuid4())  # type: ignore[arg-type]
        )

    await asyncio.wait_for(asyncio.gather(keep(1), keep(2)), 30)

    assert await api.scoring.value("SELECT count(*) FROM kept_answers WHERE asked_hash = 'hash'") == 2


async def test_a_refusal_is_not_remembered(api: Api) -> None:
    """When what was in the way has gone, the same key gets another answer."""
    running = await in_progress(api.scoring)
    problem(await api.ask(key="key-1", force_rescore=True), 409)
    await api.cancel(running)

    assert document(await api.ask(key="key-1", force_rescore=True), 202)["status"] == "pending"


async def test_an_answer_is_kept_for_a_day(api: Api) -> None:
    """After it the key is a new one, and the old answer goes in passing."""
    first = document(await api.ask(key="key-1"), 202)
    await api.ask(key="key-2")
    [claimed] = await api.scoring.claim()
    await api.scoring.store.end(completion(claimed))
    age = "UPDATE kept_answers SET answered_at = now() - interval '24 hours' + $1::text::interval"
    await api.scoring.rows(age, "1 minute")
    assert (await api.ask(key="key-1")).json() == first
    await api.scoring.rows(age, "-1 second")

    again = await api.ask(key="key-1")

    assert (document(again, 200)["score_id"], again.json()["status"]) == (first["score_id"], "completed")
    assert [r["key"] for r in await api.scoring.rows("SELECT key FROM kept_answers")] == ["key-1"]


async def test_a_key_is_used_again_while_many_old_answers_wait_to_go(api: Api) -> None:
    """Of what is older than a day only some goes at a time; what is left under the same key is no answer any more."""
    first = document(await api.ask(key="key-1"), 202)
    [claimed] = await api.scoring.claim()
    await api.scoring.store.end(completion(claimed))
    await api.scoring.rows(
        "INSERT INTO kept_answers SELECT 'bob', 'key-' || n, 'h', 'new', $1, gen_random_uuid(), '{}', "
        "now() - interval '2 days' FROM generate_series(1, 30) n",
        claimed.score_id,
    )
    await api.scoring.rows("UPDATE kept_answers SET answered_at = now() - interval '25 hours' WHERE caller = 'alice'")

    again = document(await api.ask(key="key-1"), 200)

    assert (again["score_id"], again["status"]) == (first["score_id"], "completed")
    assert (await api.ask(key="key-1")).json() == again
    assert await api.scoring.value("SELECT count(*) FROM kept_answers") == 11


async def test_an_answer_whose_text_was_lost(api: Api) -> None:
    """Whoever was cut off before it was written gets the same score, and from then on the same text."""
    first = document(await api.ask(key="key-1"), 202)
    await api.scoring.rows("UPDATE kept_answers SET answer = NULL")

    again = [await api.ask(key="key-1") for _ in range(2)]

    assert [document(a, 202)["score_id"] for a in again] == [first["score_id"]] * 2
    assert again[0].text == again[1].text

    key, request_id = idempotency.Key("alice", "key-1", ""), uuid.UUID(first["request_id"])
    late = await idempotency.complete(api.scoring.database, key, request_id, "of one that was slower")
    assert late == again[0].text


async def test_what_was_erased_is_not_made_again(api: Api) -> None:
    """Not by a repeat, nor by another question under its key; under another key it is a new wish. No key is kept."""
    await api.ask(key="planted-key", reason="planted-reason")
    await erase(api.scoring.database, api.scoring.leases, "session-1", by="ada", tell_s=0)

    for body in ({"reason": "planted-reason"}, {"force_rescore": True}):
        assert problem(await api.ask(key="planted-key", **body), 404).title == "Erased"
    assert await count_scores(api.scoring) == 0
    assert await api.scoring.value("SELECT count(*) FROM sessions") == 0
    assert "planted" not in str(await api.scoring.rows("SELECT * FROM scoring_requests"))
    assert document(await api.ask(key="planted-key", by="bob"), 202)["status"] == "pending"
    await erase(api.scoring.database, api.scoring.leases, "session-1", by="ada", tell_s=0)
    assert document(await api.ask(key="another"), 202)["status"] == "pending"


async def test_refusals_of_a_route_say_where(api: Api) -> None:
    """As those of the framework do: every 422 has `errors`."""
    await api.ask(key="key-1")
    refused = [
        await api.ask(criteria="none-such"),
        await api.ask(key="key-1", force_rescore=True),
        await api.get("sessions/session-1/scores", cursor="x"),
        await api.get("sessions", cursor="x"),
    ]

    where = [["body", "criteria"], ["header", "Idempotency-Key"], ["query", "cursor"], ["query", "cursor"]]
    assert [[fault["loc"] for fault in problem(r, 422).model_dump()["errors"]] for r in refused] == [[w] for w in where]


@pytest.mark.parametrize("key", ["x" * 256, "ä", " ", "a\tb"], ids=["too long", "not ASCII", "blank", "a tab"])
async def test_malformed_keys(api: Api, key: str) -> None:
    """1 to 255 printable characters."""
    answer = await api.client.post(
        "/api/v1/scoring/sessions/session-1/score", headers=[(b"Idempotency-Key", key.encode("latin-1"))]
    )

    problem(answer, 422)


async def test_a_request_can_be_looked_up_by_its_key(api: Api) -> None:
    """A key is the event id of the request; without one its own id is."""
    first = document(await api.ask(key="key/1 a"), 202)
    second = await api.scoring.rows("SELECT request_id FROM scoring_requests")

    found = await api.get("requests/key%2F1 a")

    assert Requests.model_validate_json(found.text).requests[0].request_id == second[0]["request_id"]
    assert found.json()["requests"][0]["score_id"] == first["score_id"]


# --- at the same time ----------------------------------------------------------------------------------


async def test_50_at_once(database_url: str) -> None:
    """One score, and everybody hears of it."""
    async with open_api(database_url, Sessions(session_1=FOUND), pool_size=20) as api:
        answers = await asyncio.gather(*(api.ask(by=f"user-{n}") for n in range(50)))

        assert {document(a, 202)["score_id"] for a in answers} == {
            str(r["score_id"]) for r in await api.scoring.rows("SELECT score_id FROM session_scores")
        }
        assert await count_scores(api.scoring) == 1
        assert sorted((await api.scoring.dispositions()).values()) == ["accepted"] + ["in_progress"] * 49
        assert await api.scoring.events() == ["queued"]


async def test_50_forced_at_once(database_url: str) -> None:
    """One makes a score, all others are refused and leave no request."""
    async with open_api(database_url, Sessions(session_1=FOUND), pool_size=20) as api:
        await completed(api.scoring)

        answers = await asyncio.gather(*(api.ask(force_rescore=True) for _ in range(50)))

        assert sorted(a.status_code for a in answers) == [202] + [409] * 49
        assert await count_scores(api.scoring) == 2
        assert await api.scoring.value("SELECT count(*) FROM scoring_requests WHERE source = 'api'") == 1


async def test_50_repeats_under_one_key_at_once(database_url: str) -> None:
    """One score and one answer, the same for all."""
    async with open_api(database_url, Sessions(session_1=FOUND), pool_size=20) as api:
        answers = await asyncio.gather(*(api.ask(key="key-1", force_rescore=True) for _ in range(50)))

        assert {(a.status_code, a.text) for a in answers} == {(202, answers[0].text)}
        assert await count_scores(api.scoring) == 1
        assert await api.scoring.value("SELECT arrivals FROM scoring_requests") == 50


async def test_two_processes_and_two_questions_under_one_key(database_url: str) -> None:
    """The first one is answered; whoever waited for it hears that the key is used."""
    source = Sessions(session_1=FOUND)
    async with open_api(database_url, source) as one, open_api(database_url, source) as other:
        answers = await asyncio.gather(
            *(a.ask(key="key-1", reason=r) for a, r in ((one, "one"), (other, "other")) for _ in range(5))
        )

        assert sorted(a.status_code for a in answers) == [202] * 5 + [422] * 5
        assert await count_scores(one.scoring) == 1


async def test_asked_and_told_at_once(database_url: str) -> None:
    """A POST, an event and a re-score of the same session make one score, whoever comes first."""
    async with open_api(database_url, Sessions(session_1=FOUND), pool_size=20) as api:
        work: list[Awaitable[Any]] = []
        for _ in range(17):
            work += [api.ask(), api.scoring.accept(session_completed())]
            work.append(api.scoring.accept(rescore(chain_id="kubernetes")))

        answers = await asyncio.gather(*work)

        assert {a.status_code for a in answers[::3]} == {202}
        assert await count_scores(api.scoring) == 1
        dispositions = list((await api.scoring.dispositions()).values())
        assert sorted(dispositions) == ["accepted"] + ["in_progress"] * 50
        assert await api.scoring.value("SELECT priority FROM session_scores") == 0


@pytest.mark.parametrize("ending", ["end", "cancel"])
@pytest.mark.parametrize("is_deferred", [False, True], ids=["nothing is deferred", "a re-score is deferred"])
async def test_asked_while_a_score_ends(database_url: str, ending: str, is_deferred: bool) -> None:
    """Before the end the running score is in the way, after it one new score is made; never two are open."""
    async with open_api(database_url, Sessions(session_1=FOUND), pool_size=20) as api:
        for _ in range(5):
            claimed = await api.scoring.claimed()
            if is_deferred:
                await api.scoring.accept(rescore(criteria=OTHER_CRITERIA))
            before = await count_scores(api.scoring)
            asking = [asyncio.create_task(api.ask(force_rescore=True)) for _ in range(10)]
            await asyncio.sleep(0)
            ended = api.scoring.store.end(completion(claimed)) if ending == "end" else api.cancel(claimed.score_id)
            await asyncio.gather(*asking, ended)
            codes = sorted(task.result().status_code for task in asking)

            made = await count_scores(api.scoring) - before
            assert made == codes.count(202) + is_deferred
            assert codes.count(202) + codes.count(409) == 10
            assert codes.count(202) <= (not is_deferred)
            for score in await api.scoring.rows("SELECT score_id FROM session_scores WHERE status = 'pending'"):
                await api.cancel(score["score_id"])


async def test_what_is_decided_is_decided_under_the_lock(database_url: str) -> None:
    """Whoever asks while somebody else holds the session waits, and answers from what was committed meanwhile."""
    async with open_api(database_url, Sessions(session_1=FOUND)) as api, connected(database_url) as somebody:
        claimed = await api.scoring.claimed()
        held = somebody.transaction()
        await held.start()
        await somebody.execute("SELECT FROM sessions FOR UPDATE")
        asking = asyncio.create_task(api.ask())
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        await wait_until(lambda: somebody.fetchval(waits), 30, "the API to wait for the lock")
        await somebody.execute(
            "UPDATE session_scores SET status = 'completed', total_score = 50, completed_at = now(), "
            "lease_token = NULL, lease_owner = NULL, lease_expires_at = NULL"
        )
        await held.commit()

        shown = document(await asyncio.wait_for(asking, 30), 200)

        assert (shown["score_id"], shown["total_score"]) == (str(claimed.score_id), 50)


async def test_a_lost_reply_is_repeated_under_its_key(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was cut off after the commit asks again, and gets the score that was made."""
    ask = Inbox.ask

    async def lossy(self: Inbox, *arguments: Any, is_vouched: bool, **named: Any) -> Any:
        answer = await ask(self, *arguments, is_vouched=is_vouched, **named)
        if is_vouched:
            raise ConnectionResetError
        return answer

    with monkeypatch.context() as broken:
        broken.setattr(Inbox, "ask", lossy)
        assert (await api.ask(key="key-1", force_rescore=True)).status_code == 500

    answer = await api.ask(key="key-1", force_rescore=True)

    assert document(answer, 202)["status"] == "pending"
    assert await count_scores(api.scoring) == 1


# --- who changed what ----------------------------------------------------------------------------------


async def test_changes_are_kept_with_who_and_when(api: Api) -> None:
    """A score, a re-score and a cancel are; what was only answered or refused changed nothing."""
    first = document(await api.ask(by="alice"), 202)
    await api.ask(by="mallory")
    [claimed] = await api.scoring.claim()
    await api.scoring.store.end(completion(claimed))
    await api.ask(by="mallory")
    second = document(await api.ask(by="bob", force_rescore=True), 202)
    await api.ask(by="mallory", force_rescore=True)
    await api.cancel(second["score_id"], by="carol")
    await api.cancel(second["score_id"], by="mallory")

    changes = await api.scoring.rows("SELECT * FROM changes ORDER BY change_id")
    assert [(c["changed_by"], c["change"], str(c["score_id"])) for c in changes] == [
        ("alice", "score", first["score_id"]),
        ("bob", "rescore", second["score_id"]),
        ("carol", "cancel", second["score_id"]),
    ]
    assert {c["session_id"] for c in changes} == {"session-1"}
    assert [str(c["request_id"]) for c in changes[:2]] == [first["request_id"], second["request_id"]]
    assert all(c["changed_at"] for c in changes)


async def test_erasing_a_session_erases_what_was_answered(api: Api) -> None:
    """The kept text of an answer holds an analysis: it goes with its session."""
    await api.ask(key="key-1")
    await api.scoring.rows("DELETE FROM sessions")

    assert await api.scoring.value("SELECT count(*) FROM kept_answers") == 0
    assert await api.scoring.value("SELECT count(*) FROM changes") == 0


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
    """The lists in their order, with the names of the interface; by session and by id it is the same."""
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
    assert list(shown["turns"][0])[:3] == ["kind", "provider", "model_requested"]
    assert "reply" not in shown["turns"][0]
    assert shown["scored_at"] == shown["completed_at"] is not None
    assert (await api.score_of()).json() == shown == await _of_reader(api, score_id)


async def _of_reader(api: Api, score_id: uuid.UUID) -> Any:
    return from_json(to_json(await api.scoring.reader.score(score_id)))


async def test_the_score_of_a_session(api: Api) -> None:
    """The latest completed one with what is newer beside it; without one the newest of any status."""
    assert problem(await api.score_of(), 404).title == "No score"

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


async def test_other_purposes_are_not_the_score_of_a_session(api: Api) -> None:
    """A consistency judgement is read by its id alone, and is no newer attempt."""
    await beside(api.scoring)
    problem(await api.score_of(), 404)
    first = await completed(api.scoring)
    await beside(api.scoring)
    await api.scoring.accept(rescore(purpose="shadow"))

    shown = document(await api.score_of())

    assert (shown["score_id"], "latest_attempt" in shown) == (str(first), False)


async def test_an_open_score_tells_where_it_is(api: Api) -> None:
    """In progress: its phase; put back: what it waits for."""
    claimed = await api.scoring.claimed()
    assert document(await api.score_of())["current_stage"] == "gathering_context"

    await api.scoring.leases.put_back(claimed, due_s=60, waiting_reason="session", burns=False, spent_s=0)

    shown = document(await api.score_of())
    assert (shown["status"], shown["waiting_for"], "current_stage" in shown) == ("pending", "session", False)


async def test_history_in_pages(api: Api) -> None:
    """Newest first, each once, whatever the size of a page, and although one comes meanwhile."""
    made = [await completed(api.scoring) for _ in range(5)][::-1]
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


async def test_history_of_scores_made_at_the_same_time(api: Api) -> None:
    """Ties are broken by the id, so none is left out between two pages."""
    made = {str(await completed(api.scoring)) for _ in range(4)}
    await api.scoring.rows("UPDATE session_scores SET created_at = '2026-01-02T03:04:05.678901Z'")

    found, cursor = [], {}
    for _ in range(4):
        page = (await api.get("sessions/session-1/scores", limit=1, **cursor)).json()
        found += [s["score_id"] for s in page["scores"]]
        cursor = {"cursor": page["next_cursor"]}

    assert set(found) == made
    assert cursor == {"cursor": None}


@pytest.mark.parametrize(
    "cursor", ["x", "%%%", "MjAyNi0wMS0wMg", "ä", "a" * 201, "MDAwMS0wMS0wMVQwMDowMDowMCsxNDowMCB4"]
)
async def test_a_cursor_that_was_not_given_out(api: Api, cursor: str) -> None:
    """422, whatever is in it."""
    await completed(api.scoring)

    problem(await api.get("sessions/session-1/scores", cursor=cursor), 422)


async def test_a_cursor_of_another_history(api: Api) -> None:
    """Of another session or purpose: behind its place there may be nothing of this one, or not all."""
    for _ in range(3):
        await completed(api.scoring)
    cursor = (await api.get("sessions/session-1/scores", limit=1)).json()["next_cursor"]

    for path, purpose in (("session-2", {}), ("session-1", {"purpose": "production"})):
        refused = await api.get(f"sessions/{path}/scores", cursor=cursor, **purpose)
        assert "another list" in problem(refused, 422).detail
    assert len((await api.get("sessions/session-1/scores", cursor=cursor)).json()["scores"]) == 2


async def test_history_of_a_session_without_scores(api: Api) -> None:
    """Known and empty is not unknown."""
    problem(await api.get("sessions/session-1/scores"), 404)
    await api.scoring.accept(session_completed(session_status="failed"))

    assert (await api.get("sessions/session-1/scores")).json() == {"scores": [], "next_cursor": None}


async def test_turns_with_their_replies(api: Api) -> None:
    """In order and in full, and nothing of what makes them reusable."""
    score_id = await full(api.scoring)

    answer = await api.get(f"scores/{score_id}/turns")

    turns = Replies.model_validate_json(answer.text).turns
    assert [(t.ordinal, t.kind, t.reply, t.attempt) for t in turns] == [
        (1, "analysis", "Well reasoned.\n\n67", 1),
        (2, "missing_tools", "1. x", 1),
    ]
    assert not {"nonce", "context_hash", "asked_hash"} & answer.json()["turns"][0].keys()


async def test_turns_of_a_score_without_any(api: Api) -> None:
    """An empty list where there is such a score."""
    score_id = await pending(api.scoring)

    assert (await api.get(f"scores/{score_id}/turns")).json() == {"score_id": str(score_id), "turns": []}
    problem(await api.get(f"scores/{uuid.uuid4()}/turns"), 404)


@pytest.mark.parametrize("path", ["scores/{}", "scores/{}/turns"])
async def test_scores_that_are_not_there(api: Api, path: str) -> None:
    """404 for an id that nothing has, 422 for what is none."""
    problem(await api.get(path.format(uuid.uuid4())), 404)
    problem(await api.get(path.format("7")), 422)


async def test_what_became_of_an_event(api: Api) -> None:
    """All requests with that id, oldest first; ids may hold anything that events may."""
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
    problem(await api.get("requests/nobody-sent-this"), 404)
    problem(await api.get("requests/a%00b"), 422)
    problem(await api.get("requests/" + "x" * 256), 422)


async def test_criteria_by_hash(api: Api) -> None:
    """What judged, whole; what has not judged yet too, since open scores name it."""
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


@pytest.mark.parametrize("has", [pending, in_progress], ids=["pending", "in progress"])
async def test_cancel(api: Api, has: Arranged) -> None:
    """200 with the score, which says who did it."""
    score_id = await has(api.scoring)

    shown = document(await api.cancel(str(score_id), by="carol"))

    assert (shown["score_id"], shown["status"], shown["error_kind"]) == (str(score_id), "cancelled", "cancelled")
    assert shown["error_message"] == "cancelled by carol"
    assert (await api.scoring.events())[-1] == "failed"


@pytest.mark.parametrize("has", [completed, completed_then_failed], ids=["completed", "completed, a newer failed"])
async def test_cancel_what_has_ended(api: Api, has: Arranged) -> None:
    """409, and history stays as it is."""
    score_id = await has(api.scoring)

    answer = await api.cancel(str(score_id))

    problem(answer, 409)
    assert answer.json()["score_status"] == "completed"
    problem(await api.cancel(str(uuid.uuid4())), 404)
    problem(await api.cancel("7"), 422)


async def test_10_cancel_at_once(api: Api) -> None:
    """One of them did."""
    score_id = await pending(api.scoring)

    answers = await asyncio.gather(*(api.cancel(score_id) for _ in range(10)))

    assert sorted(a.status_code for a in answers) == [200] + [409] * 9
    assert await api.scoring.value("SELECT count(*) FROM changes") == 1
