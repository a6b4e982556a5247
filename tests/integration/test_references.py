"""References from every door to the score that is judged against them, on a real database."""

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from api_site import Api, Sessions, open_api
from attempting import Service, a_timeline, open_service
from builders import DEFAULT_CRITERIA, Scoring, completion, rescore
from fakes import ANALYSIS, MISSING_TOOLS, FakeJudge, FakeSessions
from infrastructure import Topics, wait_until
from taking_in import PATIENCE_S, committed, running_intake, send, send_events
from tarsy_scoring.analytics import analytics
from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.cli import cli
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.events import SOURCE_RESCORE, GivenReference
from tarsy_scoring.queue import intake as intake_module
from tarsy_scoring.references.model import Reference, reference_of
from tarsy_scoring.scores.bands import DEFAULT_BANDS
from tarsy_scoring.scores.export import WITH_REFERENCES, export_scores
from tarsy_scoring.timeline.model import FoundSession
from tarsy_scoring.web.queries import ExportQuery

ENDED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TEXT = "The image tag was wrong; password=hunter2hunter2 leaked."
MASKED = "The image tag was wrong; password=[REDACTED:password#1] leaked."
URL = "https://tickets.example/INC-1"
GIVEN_AT = "2026-01-02T03:04:05+00:00"


def a_reference(text: str = TEXT, session_id: str = "one", **given: Any) -> Reference:
    return reference_of(GivenReference(text=text, **given), session_id, {}, by="ada", at=ENDED)


async def stored(scoring: Any) -> list[dict[str, Any]]:
    return await scoring.rows(
        "SELECT session_id, text, source_url, provided_by, provided_at FROM session_references ORDER BY given_at"
    )


# --- an attempt ----------------------------------------------------------------------------------------


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with open_service(database_url) as opened:
        yield opened


async def judged(service: Service, **request: Any) -> tuple[dict[str, Any], str]:
    """The document of a score made for this request, and the first prompt of its judge."""
    await service.request(source=SOURCE_RESCORE, force=True, **request)
    claimed, judge = await service.claim(), FakeJudge(ANALYSIS, MISSING_TOOLS)
    await service.attempt(claimed, judge)
    return await service.score(claimed.score_id), judge.asked[0][1][1].content


async def test_score_is_judged_against_the_reference_and_says_so(service: Service) -> None:
    """Its fingerprint is another one; its event says that it is not comparable; criteria and turns are as ever."""
    blind, without = await judged(service)
    score, prompt = await judged(service, reference=a_reference(source_url=URL))

    assert score["status"] == blind["status"] == "completed"
    assert blind["reference"] is None
    assert score["reference"] == {"source_url": URL, "provided_by": "ada", "provided_at": GIVEN_AT, "sent_by": "ada"}
    shown = MASKED.replace("[REDACTED:password#1]", "(REDACTED:password#1)")  # no text imitates a marker
    assert (TEXT in prompt, f"| {shown}" in prompt, shown in without) == (False, True, False)
    assert score["judge_fingerprint"] != blind["judge_fingerprint"]
    assert score["criteria_hash"] == blind["criteria_hash"]
    said = [(await service.events(of["score_id"]))[-1]["has_reference"] for of in (blind, score)]
    assert said == [False, True]


async def test_later_scores_take_the_newest_reference_unless_they_decline_it(service: Service) -> None:
    """Also when it is an old one that was sent again; automatic scores and shadows take none."""
    first, second = a_reference("first cause"), a_reference("second cause")
    prompts = [
        (await judged(service, **request))[1]
        for request in (
            {"reference": first},
            {"reference": second},
            {},
            {"reference": first},
            {},
            {"use_reference": False},
            {"purpose": "shadow"},
        )
    ]

    found = ["first" if "first cause" in p else "second" if "second cause" in p else None for p in prompts]
    assert found == ["first", "second", "second", "first", "first", None, None]


# --- requests ------------------------------------------------------------------------------------------


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url, Sessions(one=FoundSession("one", "kubernetes", "completed", ENDED))) as opened:
        yield opened


async def test_event_waits_for_the_score_without_its_reference(api: Api) -> None:
    """It is deferred, is judged against its reference, and the same reference twice is stored once."""
    scoring = api.scoring
    await scoring.accept(rescore("one", chain_id="kubernetes"))
    [claimed] = await scoring.claim()
    reference = a_reference()

    dispositions = [await scoring.accept(rescore("one", reference=reference)) for _ in range(2)]
    await scoring.store.end(completion(claimed))

    [against] = await scoring.claim()
    assert dispositions == [["deferred"], ["deferred"]]
    assert claimed.reference is None
    assert against.reference is not None
    assert against.reference["text"] == MASKED
    assert [row["text"] for row in await stored(scoring)] == [MASKED]
    assert await scoring.accept(rescore("one", reference=reference)) == ["in_progress"]


async def test_post_takes_a_reference(api: Api) -> None:
    """It implies `force_rescore`; who gives it is the caller unless the body names somebody; it is audited."""
    await api.scoring.accept(rescore("one", chain_id="kubernetes"))
    [claimed] = await api.scoring.claim()
    await api.scoring.store.end(completion(claimed))

    answer = await api.ask("one", reference={"text": TEXT, "source_url": URL})
    busy = await api.ask("one", reference={"text": "another"})
    [one] = await api.scoring.claim()
    await api.scoring.store.end(completion(one))
    named = {"text": TEXT, "provided_by": "grace", "provided_at": "2026-01-02T03:04:05Z"}
    other = await api.ask("one", reference=named)

    assert (answer.status_code, busy.status_code, other.status_code) == (202, 409, 202)
    assert [(r["text"], r["source_url"], r["provided_by"]) for r in await stored(api.scoring)] == [
        (MASKED, URL, "alice"),
        (MASKED, None, "grace"),
    ]
    [request] = await api.scoring.rows("SELECT force, requested_by FROM scoring_requests WHERE source = 'api' LIMIT 1")
    assert tuple(request.values()) == (True, "alice")
    changes = "SELECT changed_by, change, session_id, details FROM changes WHERE change = 'reference'"
    assert [tuple(row.values()) for row in await api.scoring.rows(changes)] == [
        ("alice", "reference", "one", {"characters": len(MASKED)})
    ] * 2


@pytest.mark.parametrize(
    ("arguments", "is_used"),
    [pytest.param([], True, id="default"), pytest.param(["--without-reference"], False, id="declined")],
)
async def test_rescore_command_takes_the_stored_reference_or_leaves_it_out(
    api: Api, arguments: list[str], is_used: bool
) -> None:
    await api.ask("one", reference={"text": TEXT})
    [claimed] = await api.scoring.claim()
    await api.scoring.store.end(completion(claimed))
    variables = {"SCORING_DATABASE_URL": api.scoring.url, "USER": "ada", "OPENAI_API_KEY": "k"}

    done = await asyncio.to_thread(CliRunner().invoke, cli, ["rescore", "one", *arguments], env=variables)

    assert done.exit_code == 0, done.output
    [again] = await api.scoring.claim()
    assert (again.reference is not None) is is_used


async def test_a_token_that_gives_a_reference_is_named(database_url: str, tmp_path: Path) -> None:
    """In the record of the score as the sender, in the page beside the person that it names."""
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(f"- {{name: pipeline, sha256: {hashlib.sha256(b'secret').hexdigest()}, scope: score}}\n")
    own = Settings(api_tokens_file=tokens)
    async with open_api(database_url, FakeSessions(one=a_timeline()), settings=own) as api:
        api.client.headers = httpx.Headers({"Authorization": "Bearer secret"})
        named = await api.ask("one", reference={"text": TEXT, "provided_by": "cto@corp", "source_url": URL})
        assert named.status_code == 202, named.text
        [claimed] = await api.scoring.claim()
        shown = {k: v for k, v in (claimed.reference or {}).items() if k != "text"}
        await api.scoring.store.end(completion(claimed, reference=shown))
        document, page = (await api.score_of("one")).json(), (await api.client.get("/sessions/one")).text

    assert (document["reference"]["provided_by"], document["reference"]["sent_by"]) == ("cto@corp", "token pipeline")
    assert "Judged against a reference from cto@corp, sent by token pipeline" in page
    assert "A reference from cto@corp, sent by token pipeline" in page


# --- how many ------------------------------------------------------------------------------------------


async def texts(api: Api) -> list[str]:
    return [row["text"] for row in await stored(api.scoring)]


async def test_newest_references_of_a_session_stay(api: Api) -> None:
    """And those that a score was judged against, or will be; other sessions keep theirs."""
    scoring = api.scoring
    await scoring.accept(rescore("two", reference=a_reference("of two", "two")))
    await scoring.accept(rescore("one", reference=a_reference("judged")))
    claimed = next(c for c in await scoring.claim() if c.session_id == "one")
    await scoring.store.end(completion(claimed, reference={"provided_by": "ada"}))
    await scoring.accept(*(rescore("one", reference=a_reference(f"cause {n}")) for n in range(15)))
    for n in range(15, 30):
        await scoring.accept(rescore("one", reference=a_reference(f"cause {n}")))

    kept = [f"cause {n}" for n in (0, *range(20, 30))]
    assert await texts(api) == ["of two", "judged", *kept]
    [running] = [c for c in await scoring.claim() if c.session_id == "one"]
    assert running.reference is not None
    assert running.reference["text"] == "cause 0"
    await scoring.leases.cancel(running.score_id, "ada")
    await scoring.accept(rescore("one", reference=a_reference("cause 30")))
    assert await texts(api) == ["of two", "judged", *(f"cause {n}" for n in range(21, 31))]


async def test_an_export_holds_the_newest_references_of_few_scores_at_a_time(api: Api) -> None:
    scoring = api.scoring
    for n in range(12):
        await scoring.accept(rescore(f"s-{n}", reference=a_reference(f"cause of {n}", f"s-{n}")))
    for claimed in await scoring.claim():
        await scoring.store.end(completion(claimed, reference={"provided_by": "ada"}))
    for n in range(30):
        await scoring.accept(rescore("s-0", reference=a_reference(f"cause {n}", "s-0")))

    batches = [batch async for batch in export_scores(scoring.reader, ExportQuery().chosen)]
    lines = (await api.get("export")).text.splitlines()

    assert [len(batch) for batch in batches] == [WITH_REFERENCES, 2]
    given = {line["score"]["session_id"]: line["references"] for line in map(json.loads, lines)}
    assert {session: len(references) for session, references in given.items()} == {"s-0": 10} | {
        f"s-{n}": 1 for n in range(1, 12)
    }
    assert (given["s-0"][0]["text"], given["s-0"][0]["sent_by"]) == ("cause 29", "ada")


async def test_score_whose_event_may_give_no_reference_is_flagged(service: Service) -> None:
    score, prompt = await judged(service, is_reference_refused=True)

    assert (score["status"], score["reference"]) == ("completed", None)
    assert "reference_refused" in score["flags"]
    assert "hunter2" not in prompt


BAD: list[tuple[str, Any]] = [
    ("blank", {"text": " \n"}),
    ("too-long", {"text": "x" * 20_001}),
    ("nul", {"text": "a\x00b"}),
    ("script", {"text": "x", "source_url": "javascript:alert(1)"}),
    ("password", {"text": "x", "source_url": "https://ada:pw@tickets.example/1"}),
    ("line-break", {"text": "x", "source_url": "https://tickets.example/1\nx"}),
    ("unknown-field", {"text": "x", "sourceurl": URL}),
]


@pytest.mark.parametrize("given", [pytest.param(given, id=name) for name, given in BAD])
async def test_reference_that_is_not_valid_is_refused(api: Api, given: dict[str, Any]) -> None:
    answer = await api.ask("one", reference=given)

    assert answer.status_code == 422, answer.text
    assert "hunter2" not in answer.text
    assert await stored(api.scoring) == []


async def test_form_of_the_page_gives_a_reference_of_its_caller(database_url: str) -> None:
    """The form cannot name somebody else, and the page then shows what the score was judged against."""
    async with open_api(database_url, FakeSessions(one=a_timeline())) as api:
        form = {"reference": "The disk\r\nwas full.", "source_url": URL, "provided_by": "mallory", "key": "k"}
        answers = [await api.client.post("/sessions/one/score", data=form) for _ in range(2)]
        bad = await api.client.post("/sessions/one/score", data={"reference": "x", "source_url": "javascript:x"})
        alone = await api.client.post("/sessions/one/score", data={"source_url": URL})
        [claimed] = await api.scoring.claim()
        assert claimed.reference is not None
        shown = {k: v for k, v in claimed.reference.items() if k != "text"}
        await api.scoring.store.end(completion(claimed, reference=shown, score_analysis="See E4."))
        html = (await api.client.get("/sessions/one")).text
        timeline = (await api.client.get("/sessions/one/timeline")).text

    assert [a.status_code for a in (*answers, bad, alone)] == [303, 303, 422, 422]
    assert (claimed.reference["text"], claimed.reference["provided_by"]) == ("The disk\nwas full.", "alice")
    assert "Judged against a reference from alice" in html
    assert f'<a href="{URL}" rel="noopener noreferrer"' in html
    assert "A reference from alice" in html
    assert "#timeline-E4" in html
    assert 'id="timeline-E4"' in timeline


# --- what is kept apart --------------------------------------------------------------------------------


async def test_statistics_count_a_session_once_of_each_kind(api: Api) -> None:
    """A reference takes no score out of the trends, and the total with it is shown only where it is asked for."""
    scoring = api.scoring
    for total, reference in ((40, None), (90, {"provided_by": "ada"})):
        await scoring.accept(rescore("one", chain_id="k", criteria=DEFAULT_CRITERIA))
        [claimed] = await scoring.claim()
        await scoring.store.end(completion(claimed, total_score=total, reference=reference))

    for kind, total in (("without", 40), ("with", 90)):
        selection = Selection(reference=kind)  # type: ignore[arg-type]
        assert [p.average for p in (await analytics.trends(scoring.database, selection))[0]] == [total]
        [of_one] = (await analytics.distribution(scoring.database, selection, lambda _: DEFAULT_BANDS)).criteria
        assert sum(b.count for b in of_one.bands) == 1
        answer = (await api.get("analytics/trends", reference=kind)).json()
        assert [p["average"] for p in answer["points"]] == [total]
    assert [p["average"] for p in (await api.get("analytics/trends")).json()["points"]] == [40]
    assert (await api.get("analytics/trends", reference="both")).status_code == 422


# --- intake --------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("infrastructure")
async def test_references_that_are_dear_to_clean_hold_up_nobody(
    topics: Topics, scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Cleaning leaves the event loop free, and a take holds few of them. So other sessions are taken in and
    offsets are committed while most references are not cleaned yet.
    """
    others_go_on, given = threading.Event(), 0

    def clean(*arguments: Any, **options: Any) -> Reference:
        nonlocal given
        given += 1
        if given > 60:
            assert others_go_on.wait(10), "the others wait for this one"
        return reference_of(*arguments, **options)

    async def go_on() -> bool:
        rows = await scoring.rows("SELECT session_id FROM scoring_requests WHERE source = 'session-completed'")
        is_committed = (await committed(topics, 0, topics.rescore_requested) or 0) >= 40
        return is_committed and [row["session_id"] for row in rows] == ["innocent"]

    monkeypatch.setattr(intake_module, "reference_of", clean)
    dear = {"session_id": "dear", "reference": {"text": "x" * 20_000}}
    await send(
        topics, topics.rescore_requested, 0, [json.dumps(dear | {"event_id": f"{n}"}).encode() for n in range(100)]
    )
    await send_events(topics, 0, ["innocent"])

    async with running_intake(topics, scoring):
        await wait_until(go_on, PATIENCE_S, "the others go on")
        others_go_on.set()

    assert 40 <= given < 100
