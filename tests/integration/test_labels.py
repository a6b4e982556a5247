"""Labels, the review list and trust cards over HTTP and on the pages, on a real database."""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from api_site import Api, open_api
from attempting import a_timeline
from fakes import FakeSessions
from stored import store_score
from tarsy_scoring.labels import labels
from tarsy_scoring.labels.labels import RANDOM_A_DAY
from tarsy_scoring.labels.review import DAYS, PICKED_A_DAY, read_review
from tarsy_scoring.retention.erasure import erase
from tarsy_scoring.web.api.labels import LabelDocument

TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
DAY = timedelta(days=1)
YESTERDAY = TODAY - DAY / 2
AS_BROWSER = {"Accept": "text/html,*/*;q=0.8", "X-Forwarded-User": "alice"}
CRITERIA = {"criteria": "by-outcome", "criteria_hash": "hash-of-outcome"}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url) as opened:
        yield opened


async def post_label(api: Api, score_id: uuid.UUID | str, status: int = 201, by: str = "alice", **body: Any) -> Any:
    """POST of a label."""
    path = f"/api/v1/scoring/scores/{score_id}/labels"
    answer = await api.client.post(path, json=body, headers={"X-Forwarded-User": by})
    assert answer.status_code == status, answer.text
    return answer.json()


async def read_json(api: Api, path: str, **query: str) -> Any:
    answer = await api.get(path, **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def read_picks(api: Api) -> Any:
    return from_json(to_json(await read_review(api.scoring.database)))


async def look(api: Api, path: str) -> str:
    answer = await api.client.get(path, headers=AS_BROWSER)
    assert answer.status_code == 200, answer.text
    return re.sub(r"\s+", " ", answer.text)


async def store_days(api: Api, per_day: int, days: int = 1, **columns: Any) -> None:
    """Store `per_day` scores on each of the last days, with totals spread over the bands."""
    for day in range(days):
        for n in range(per_day):
            total = (day * per_day + n) * 37 % 101
            await store_score(api.scoring, f"s-{day}-{n}", total, at=YESTERDAY - day * DAY, **columns)


async def keep_bands(api: Api) -> None:
    """Store criteria with bands of their own."""
    content = {"name": "by-outcome", "bands": {"correct": [60, 100], "partial": [35, 59], "wrong": [0, 34]}}
    await api.scoring.store.keep_criteria("hash-of-outcome", "by-outcome", content)


# --- labels --------------------------------------------------------------------------------------------


async def test_a_label_is_kept_and_shown(api: Api) -> None:
    """In the answer, the list, the page and the journal of changes. A second label keeps the first."""
    await keep_bands(api)
    score_id = await store_score(api.scoring, "s", 70, **CRITERIA)
    kept = await post_label(api, score_id, outcome="wrong", number=20, reason="<b>no</b> evidence", by="bob")
    LabelDocument.model_validate(kept)

    said = [kept[k] for k in ("by", "agrees", "outcome", "number", "reason", "session_id")]
    assert said == ["bob", None, "wrong", 20.0, "<b>no</b> evidence", "s"]
    assert await read_json(api, f"scores/{score_id}/labels") == {"labels": [kept]}
    html = await look(api, f"/scores/{score_id}")
    assert "<b>bob</b>" in html
    assert "&lt;b&gt;no&lt;/b&gt; evidence" in html
    assert '<option value="outcome:partial">' in html
    [change] = await api.scoring.rows("SELECT changed_by, change, session_id, score_id FROM changes")
    assert tuple(change.values()) == ("bob", "label", "s", score_id)
    second = await post_label(api, score_id, agrees=True, reason="I thought again", by="bob")
    assert (await read_json(api, f"scores/{score_id}/labels"))["labels"] == [second, kept]


async def test_secrets_in_reasons_are_masked_before_they_are_stored(api: Api) -> None:
    """In the reason of a label, and in that of a request."""
    score_id = await store_score(api.scoring, "s", 70)
    kept = await post_label(api, score_id, agrees=True, reason="password=hunter2hunter2", by="bob")
    asked = await api.ask("s", force_rescore=True, reason="password=hunter2hunter2")

    assert asked.status_code == 202, asked.text
    stored = await api.scoring.rows("SELECT reason FROM score_labels UNION ALL SELECT reason FROM scoring_requests")
    assert [row["reason"] for row in stored] == [kept["reason"], "password=[REDACTED:password#1]"]
    assert kept["reason"] == "password=[REDACTED:password#1]"


async def test_the_form_does_what_the_api_does(api: Api) -> None:
    """The form redirects to the score; a refusal is a page."""
    score_id = await store_score(api.scoring, "s", 70)
    form = {"said": "outcome:0-49", "number": "20", "reason": "no"}
    answer = await api.client.post(f"/scores/{score_id}/labels", data=form, headers=AS_BROWSER)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/scores/{score_id}#labels")

    refused = await api.client.post(f"/scores/{score_id}/labels", data={"reason": "hm"}, headers=AS_BROWSER)
    assert refused.status_code == 422
    assert refused.headers["content-type"].startswith("text/html")
    [label] = (await read_json(api, f"scores/{score_id}/labels"))["labels"]
    assert (label["by"], label["agrees"], label["outcome"], label["number"]) == ("alice", False, "0-49", 20)


async def test_a_review_shows_a_total_only_after_the_label(database_url: str) -> None:
    """A skipped score has no label and stays hidden, also in its timeline."""
    async with open_api(database_url, FakeSessions(**{"s-0": a_timeline(session_id="s-0")})) as api:
        score_id = await store_score(api.scoring, "s-0", 71, at=YESTERDAY)
        for said, shown in (("skip", 0), ("outcome:0-49", 1)):
            page = await look(api, "/review")
            blind = await look(api, "/sessions/s-0/timeline?blind=1")
            assert 'href="/sessions/s-0/timeline?blind=1&amp;"' in page
            assert "<b>71" not in page + blind
            form = {"review": "1", "said": said}
            answer = await api.client.post(f"/scores/{score_id}/labels", data=form, headers=AS_BROWSER)
            assert (answer.status_code, answer.headers["location"]) == (303, f"/review?after={score_id}")
            assert (await look(api, answer.headers["location"])).count("<b>71") == shown
            assert await api.scoring.value("SELECT count(*) FROM score_labels") == shown
        assert (await api.client.get("/review?after=x", headers=AS_BROWSER)).status_code == 422


REFUSED = {
    "nothing": {},
    "agrees-and-does-not": {"agrees": True, "number": 20},
    "too-high": {"number": 101},
    "no-such-band": {"outcome": "correkt"},
    "undecided": {"outcome": "unknown"},
    "a-number-of-another-band": {"outcome": "0-49", "number": 50},
    "for-another-person": {"agrees": True, "labelled_by": "bob"},
    "not-storable": {"agrees": True, "reason": "\0"},
}


async def test_refused_labels(api: Api) -> None:
    """422, nothing is stored, and a contradiction is explained by the numbers of the band."""
    await keep_bands(api)
    score_id = await store_score(api.scoring, "s", 70)
    for body in REFUSED.values():
        await post_label(api, score_id, 422, **body)
    path, half = f"/api/v1/scoring/scores/{score_id}/labels", b'{"agrees": true, "reason": "\\ud800"}'
    answer = await api.client.post(path, content=half, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    with_bands = await store_score(api.scoring, "with-bands", 70, **CRITERIA)
    refused = await post_label(api, with_bands, 422, outcome="accurate", number=20)
    assert "'correct' (60-100), and `number` (20) is outside of it" in refused["detail"]
    form = {"said": "outcome:correct", "number": "20"}
    assert (await api.client.post(f"/scores/{with_bands}/labels", data=form, headers=AS_BROWSER)).status_code == 422
    assert await api.scoring.value("SELECT count(*) FROM score_labels") == 0
    assert await api.scoring.value("SELECT count(*) FROM changes") == 0


async def test_a_score_without_a_total_cannot_be_labelled(api: Api) -> None:
    """409 for scores that are not completed or had no judge; 404 for unknown scores."""
    for status in ("pending", "in_progress", "failed", "timed_out", "cancelled"):
        score_id = await store_score(api.scoring, f"s-{status}", status=status)
        assert (await post_label(api, score_id, 409, agrees=True))["score_status"] == status
        assert "label-form" not in await look(api, f"/scores/{score_id}")
    await post_label(api, await store_score(api.scoring, "no-judge"), 409, agrees=True)
    await post_label(api, uuid.uuid4(), 404, agrees=True)
    assert (await api.get(f"scores/{uuid.uuid4()}/labels")).status_code == 404
    assert await api.scoring.value("SELECT count(*) FROM score_labels") == 0


async def test_labels_beside_an_erasure(api: Api) -> None:
    """In either order no label is left, and there is no deadlock."""
    scores = {f"s-{n}": await store_score(api.scoring, f"s-{n}", 70) for n in range(10)}
    scoring, agree = api.scoring, labels.NewLabel(agrees=True)
    work = [labels.add(scoring.database, score_id, agree, by="ada") for score_id in scores.values()]
    erasing = [erase(scoring.database, scoring.leases, session_id, by="ada", relay_wait_s=0) for session_id in scores]
    async with asyncio.timeout(30):
        await asyncio.gather(*work, *erasing)
    for table in ("sessions", "score_labels", "changes WHERE session_id IS NOT NULL"):
        assert await scoring.value(f"SELECT count(*) FROM {table}") == 0


# --- the review list -----------------------------------------------------------------------------------


async def test_a_day_has_random_and_suspicious_scores(api: Api) -> None:
    """The same for every reader, without a write; scores of old days and of other purposes are not listed."""
    await store_days(api, 20)
    for n in range(10):
        flags = ["second_opinion_disagrees"] if n == 0 else ["ungrounded"]
        await store_score(api.scoring, f"odd-{n}", 50, at=YESTERDAY, flags=flags)
    old = await store_score(api.scoring, "old", 50, at=TODAY - (DAYS + 2) * DAY)
    beside = await store_score(api.scoring, "beside", 50, at=YESTERDAY, purpose="shadow")
    first, again = [await read_picks(api) for _ in range(2)]

    assert again == first
    picks = first["picks"]
    assert sum(pick["is_random"] for pick in picks) == RANDOM_A_DAY
    suspicious = [pick for pick in picks if not pick["is_random"]]
    assert len(suspicious) == PICKED_A_DAY
    assert all(pick["reasons"] for pick in suspicious)
    assert "odd-0" in {pick["session_id"] for pick in picks}
    assert not {str(old), str(beside)} & {pick["score_id"] for pick in picks}
    assert first["to_label"] == len(picks)


async def test_a_day_with_few_scores_is_listed_whole(api: Api) -> None:
    await store_days(api, RANDOM_A_DAY + PICKED_A_DAY)
    assert (await read_picks(api))["to_label"] == RANDOM_A_DAY + PICKED_A_DAY
    await store_score(api.scoring, "one-more", 50, at=YESTERDAY)
    assert (await read_picks(api))["to_label"] == RANDOM_A_DAY


# --- trust cards ---------------------------------------------------------------------------------------


async def test_the_card_of_a_judge_that_agrees_with_people(api: Api) -> None:
    """Each person's last label counts, on random scores and on others; the review page shows the card."""
    await keep_bands(api)
    await store_days(api, 2 * RANDOM_A_DAY, days=2, **CRITERIA)
    scores = [row["score_id"] for row in await api.scoring.rows("SELECT score_id FROM session_scores")]
    for score_id in scores:
        await post_label(api, score_id, outcome="wrong", number=0)
        await post_label(api, score_id, agrees=True)
    [card] = (await read_json(api, "trust"))["cards"]

    assert (card["matched"], card["kappa"]["value"], card["mean_difference"]) == (20, 1.0, 0)
    assert {source: kappa["n"] for source, kappa in card["by_source"].items()} == {"random": 10, "picked": 10}
    assert [band["id"] for band in card["bands"]] == ["wrong", "partial", "correct"]
    assert "agree with the judge's band on 20 of 20" in (await look(api, "/review")).replace("&#39;", "'")


async def test_a_judge_without_a_name_has_a_card(api: Api) -> None:
    """Scores without criteria or fingerprint share one name, under which every page finds the card."""
    nameless = {"criteria": None, "criteria_hash": None, "judge_fingerprint": None}
    score_id = await store_score(api.scoring, "s", 50, at=YESTERDAY, **nameless)
    await post_label(api, score_id, agrees=True)

    [card] = (await read_json(api, "trust"))["cards"]

    assert (card["matched"], card["judge_fingerprint"]) == (1, labels.UNKNOWN)
    assert (await read_json(api, "trust", criteria=labels.UNKNOWN, fingerprint=labels.UNKNOWN))["cards"] == [card]
    assert "<dd>1</dd>" in await look(api, "/review")


async def test_each_judge_has_its_own_card(api: Api) -> None:
    """By criteria and fingerprint; a judge without labels has none."""
    await store_days(api, 2, judge_fingerprint="judge-1")
    await store_score(api.scoring, "other", 50, judge_fingerprint="judge-2", at=YESTERDAY)
    await store_score(api.scoring, "third", 50, judge_fingerprint="judge-3", at=YESTERDAY)
    for pick in (await read_picks(api))["picks"]:
        if pick["judge_fingerprint"] != "judge-3":
            await post_label(api, pick["score_id"], agrees=True)
    cards = (await read_json(api, "trust"))["cards"]
    assert [(c["judge_fingerprint"], c["matched"]) for c in cards] == [("judge-1", 2), ("judge-2", 1)]
    assert (await read_json(api, "trust", fingerprint="judge-2"))["cards"] == cards[1:]
    assert (await read_json(api, "trust", criteria=cards[0]["criteria"]))["cards"] == cards
    assert (await read_json(api, "trust", criteria="others")) == {"cards": []}
