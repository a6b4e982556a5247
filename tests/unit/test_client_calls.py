"""The Python client: repeats, errors, waiting, parameters and answers, without a network."""

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx2
import pytest
from pydantic import BaseModel

from tarsy_scoring.client import (
    ApiError,
    AsyncClient,
    Client,
    Conflict,
    ExportedScore,
    NotFound,
    RequestRefused,
    TooManyRequests,
    Unauthorised,
    Unavailable,
    models,
)
from tarsy_scoring.queue import score_parts
from tarsy_scoring.records import session_list
from tarsy_scoring.web.documents import ScoreDocument

ID = UUID("0f0c1f6f-d6b8-4c0c-a0b8-b3c3e9d5a7c1")
SCORE: dict[str, Any] = dict.fromkeys(models.Score.model_fields) | {
    "score_id": str(ID),
    "session_id": "session-1",
    "purpose": "production",
    "status": "completed",
    "attempt": 1,
    "created_at": "2026-01-02T03:04:05Z",
    "total_score": 67,
    "missing_tools": [],
    "alternative_approaches": [],
    "is_current_criteria": True,
    "failure_tags": [],
    "flags": [],
    "gates": [],
    "usage": dict.fromkeys(models.Usage.model_fields),
}
PENDING = SCORE | {"status": "pending", "total_score": None, "waiting_for_text": "Every provider is busy."}
Answer = httpx2.Response | httpx2.TransportError


def answer(document: Any = SCORE, status: int = 200, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, json=document, headers={n.replace("_", "-"): v for n, v in headers.items()})


def refusal(status: int, retry_after: str | None = None, **members: Any) -> httpx2.Response:
    document = {"type": "urn:tarsy-scoring:problem:x", "detail": "it is refused"} | members
    return answer(document, status, **({} if retry_after is None else {"retry_after": retry_after}))


class Served:
    """Both clients on a transport that gives these answers in turn; both must send the same requests."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = answers
        self.sent: list[httpx2.Request] = []
        self.slept_s: list[float] = []

    def _transport(self) -> httpx2.MockTransport:
        left = iter(self._answers)

        def handle(request: httpx2.Request) -> httpx2.Response:
            self.sent.append(request)
            given = next(left)
            if isinstance(given, httpx2.TransportError):
                raise given
            return httpx2.Response(given.status_code, headers=given.headers, content=given.content)

        return httpx2.MockTransport(handle)

    def result(self, method: str, *arguments: Any, **options: Any) -> Any:
        """What a method returns or raises; a list for an iterator."""
        found = [self._blocking(method, arguments, options), asyncio.run(self._in_loop(method, arguments, options))]
        half = len(self.sent) // 2
        assert [_shown(r) for r in self.sent[:half]] == [_shown(r) for r in self.sent[half:]]
        assert self.slept_s[: len(self.slept_s) // 2] == self.slept_s[len(self.slept_s) // 2 :]
        del self.sent[half:], self.slept_s[len(self.slept_s) // 2 :]
        assert repr(found[0]) == repr(found[1])
        return found[0]

    def _blocking(self, method: str, arguments: Any, options: Any) -> Any:
        transport = self._transport()
        with Client("http://scoring.test", token="t0ken", transport=transport, sleep=self.slept_s.append) as client:
            try:
                found = getattr(client, method)(*arguments, **options)
                return list(found) if isinstance(found, Iterator) else found
            except (ApiError, TimeoutError) as error:
                return error

    async def _in_loop(self, method: str, arguments: Any, options: Any) -> Any:
        async def sleep(seconds: float) -> None:
            self.slept_s.append(seconds)

        transport = self._transport()
        async with AsyncClient("http://scoring.test", token="t0ken", transport=transport, sleep=sleep) as client:
            try:
                found = getattr(client, method)(*arguments, **options)
                return [each async for each in found] if hasattr(found, "__aiter__") else await found
            except (ApiError, TimeoutError) as error:
                return error


def _shown(request: httpx2.Request) -> tuple[Any, ...]:
    return request.method, str(request.url), request.content, request.headers.get("authorization")


# --- errors and repeats --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RequestRefused),
        (401, Unauthorised),
        (403, Unauthorised),
        (404, NotFound),
        (409, Conflict),
        (413, RequestRefused),
        (422, RequestRefused),
        (429, TooManyRequests),
        (500, Unavailable),
        (503, Unavailable),
        (302, RequestRefused),
    ],
)
def test_each_reaction_has_a_type_with_the_words_of_the_api(status: int, kind: type[ApiError]) -> None:
    served = Served(refusal(status))

    error = served.result("score", "session-1")

    assert type(error) is kind
    assert (str(error), error.status, error.type) == ("it is refused", status, "urn:tarsy-scoring:problem:x")
    assert len(served.sent) == 1


def test_a_malformed_request_says_where() -> None:
    served = Served(refusal(422, errors=[{"loc": ["body", "criteria"], "msg": "too long"}]))

    assert str(served.result("request_score", "session-1")) == "it is refused; body.criteria: too long"


def test_the_page_of_a_proxy_is_an_error_with_its_beginning() -> None:
    served = Served(httpx2.Response(502, content=b"<h1>Bad gateway</h1>"))

    assert str(served.result("score", "session-1")) == "the answer has the status 502: <h1>Bad gateway</h1>"


@pytest.mark.parametrize(
    ("answers", "slept_s", "kind"),
    [
        pytest.param([refusal(429, "7"), answer()], [7.0], models.Score, id="after the wait asked for"),
        pytest.param([refusal(503, "2")] * 2 + [answer()], [2.0, 2.0], models.Score, id="twice"),
        pytest.param([refusal(503, "2")] * 3, [2.0, 2.0], Unavailable, id="and not three times"),
        pytest.param([refusal(429, "31")], [], TooManyRequests, id="not after a long wait"),
        pytest.param([refusal(503)], [], Unavailable, id="not without a wait"),
        pytest.param([refusal(500, "2")], [], Unavailable, id="not a failure"),
        pytest.param([httpx2.ReadError("gone"), answer()], [0.5], models.Score, id="a broken connection"),
        pytest.param([httpx2.ConnectError("refused")] * 3, [0.5, 2.0], Unavailable, id="no connection"),
    ],
)
def test_a_request_is_repeated_where_that_may_help(answers: list[Answer], slept_s: list[float], kind: type) -> None:
    served = Served(*answers)

    found = served.result("score", "session-1")

    assert type(found) is kind
    assert served.slept_s == slept_s


def test_a_repeated_request_for_a_score_has_the_same_key() -> None:
    """So the API makes one score, although the answer to the first request was lost."""
    served = Served(httpx2.ReadError("gone"), answer(status=202))
    served.result("request_score", "session-1", idempotency_key="run-1")
    assert [r.headers["idempotency-key"] for r in served.sent] == ["run-1", "run-1"]

    left = iter([httpx2.ReadError("gone"), answer(status=202)])
    keys: list[str] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        keys.append(request.headers["idempotency-key"])
        given = next(left)
        if isinstance(given, httpx2.TransportError):
            raise given
        return given

    with Client("http://scoring.test", transport=httpx2.MockTransport(handle), sleep=lambda _s: None) as client:
        client.request_score("session-1", force=True)
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_cancellation_whose_answer_was_lost_is_not_repeated() -> None:
    """A repeat would be a 409, although the first one succeeded."""
    served = Served(httpx2.ReadError("gone"))

    assert isinstance(served.result("cancel", ID), Unavailable)


# --- waiting -------------------------------------------------------------------------------------------


def test_waiting_reads_rarer_and_rarer_until_the_score_has_ended() -> None:
    served = Served(*[answer(PENDING)] * 6, answer(SCORE | {"status": "failed", "total_score": None}))

    score = served.result("wait_for_score", "session-1")

    assert score.status == "failed"
    assert served.slept_s == [1.0, 2.0, 5.0, 10.0, 10.0, 10.0]
    assert served.sent[0].url.path == "/api/v1/scoring/sessions/session-1/score"
    assert {r.url.path for r in served.sent[1:]} == {f"/api/v1/scoring/scores/{ID}"}


def test_waiting_for_a_session_means_its_newest_score() -> None:
    newest = {"score_id": str(UUID(int=7)), "status": "pending"}
    served = Served(answer(SCORE | {"latest_attempt": newest}), answer(SCORE | {"score_id": newest["score_id"]}))

    assert served.result("wait_for_score", "session-1").score_id == UUID(int=7)


def test_waiting_ends_with_the_reason_why_the_score_is_open() -> None:
    served = Served(answer(PENDING))

    error = served.result("wait_for_score", "session-1", timeout_s=0)

    assert str(error) == f"score {ID} is pending after 0 s: Every provider is busy."


def test_a_score_that_has_ended_is_not_read_again() -> None:
    served = Served()
    ended = models.Score.model_validate(SCORE)

    assert served.result("wait_for_score", ended) == ended
    assert served.sent == []


# --- what is sent --------------------------------------------------------------------------------------


def test_only_given_options_are_sent() -> None:
    served = Served(answer(status=202))
    served.result("request_score", "session-1", idempotency_key="k")
    assert json.loads(served.sent[0].content) == {}
    assert served.sent[0].headers["authorization"] == "Bearer t0ken"

    served = Served(answer(status=202))
    reference = {"text": "The disk was full.", "provided_at": datetime(2026, 1, 2, tzinfo=UTC)}
    options = {"force": True, "criteria": "c", "reason": "r", "reference": reference, "use_reference": False}
    served.result("request_score", "session-1", **options, idempotency_key="k")
    assert json.loads(served.sent[0].content) == {
        "force_rescore": True,
        "criteria": "c",
        "reason": "r",
        "reference": {"text": "The disk was full.", "provided_at": "2026-01-02T00:00:00+00:00"},
        "use_reference": False,
    }


def test_filters_are_those_of_the_api_on_every_page() -> None:
    page = {"sessions": [], "next_cursor": "next"}
    served = Served(answer(page), answer(page | {"next_cursor": None}))
    labels = {"guidance": "v2", "team": "a&b"}

    served.result("sessions", chain="k8s", since=datetime(2026, 1, 2), labels=labels, begins_with="s", max_score=49)

    first, second = (r.url.params for r in served.sent)
    assert first.multi_items() == [
        ("chain", "k8s"),
        ("since", "2026-01-02T00:00:00+00:00"),
        ("max_score", "49"),
        ("limit", "200"),
        ("label", "guidance=v2"),
        ("label", "team=a&b"),
        ("q", "s"),
    ]
    assert second["cursor"] == "next"


def test_an_id_cannot_change_the_address() -> None:
    served = Served(answer())

    served.result("score", "../export?x=1")

    assert served.sent[0].url.raw_path == b"/api/v1/scoring/sessions/..%2Fexport%3Fx%3D1/score"


@pytest.mark.parametrize("base_url", ["scoring.example", "ftp://scoring.example", "https://", ""])
@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_an_address_that_is_not_http_is_refused(client: Callable[[str], Any], base_url: str) -> None:
    with pytest.raises(ValueError, match="no HTTP address"):
        client(base_url)


# --- what is read --------------------------------------------------------------------------------------


def test_fields_of_a_newer_service_are_kept() -> None:
    score = Served(answer(SCORE | {"status": "resting", "mood": "calm"})).result("score", "session-1")

    assert (score.status, score.mood, score.is_open) == ("resting", "calm", False)


def test_an_answer_of_something_else_is_an_error() -> None:
    error = Served(answer({"hello": "world"})).result("score", "session-1")

    assert isinstance(error, Unavailable)
    assert "not one of this API" in str(error)
    assert "world" not in str(error)


def test_an_export_is_split_at_line_feeds_alone() -> None:
    """U+2028 and U+0085 end a line elsewhere, and may stand in JSON."""
    text = "one\u2028two\u0085three"
    lines = [
        {"alert_type": text, "labels": {}, "references": [], "score": SCORE},
        {"alert_type": None, "labels": {"a": "b"}, "references": [{"text": "x"}], "score": SCORE},
    ]
    content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()

    found = Served(httpx2.Response(200, content=content)).result("export", latest=True)

    assert [type(each) for each in found] == [ExportedScore] * 2
    assert [each.alert_type for each in found] == [text, None]


def test_a_refused_export_is_an_error() -> None:
    assert isinstance(Served(refusal(503, "10")).result("export"), Unavailable)


OF_API = {
    models.Score: ScoreDocument,
    models.LatestAttempt: score_parts.LatestAttempt,
    models.MissingTool: score_parts.MissingTool,
    models.AlternativeApproach: score_parts.AlternativeApproach,
    models.Gate: score_parts.Gate,
    models.Usage: score_parts.Usage,
}


@pytest.mark.parametrize("model", OF_API, ids=lambda model: model.__name__)
def test_every_field_of_the_client_is_one_of_the_api(model: type[BaseModel]) -> None:
    assert model.model_fields.keys() <= OF_API[model].model_fields.keys()


@pytest.mark.parametrize("name", ["ListedSession", "ListedScore", "SessionPage"])
def test_every_field_of_a_list_is_one_of_the_api(name: str) -> None:
    assert getattr(models, name).model_fields.keys() <= set(getattr(session_list, name).__dataclass_fields__)
