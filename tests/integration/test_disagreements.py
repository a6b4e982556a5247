"""A judge that says the opposite of people in 30 of 100 reviewed sessions: page, report, week and trust card."""

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from click.testing import CliRunner

from api_site import open_api
from builders import Scoring, open_scoring
from infrastructure import run_apart
from stored import store_score
from tarsy_scoring.commands.calibrate import calibrate
from tarsy_scoring.commands.report import report
from tarsy_scoring.labels import labels
from tarsy_scoring.labels.agreement import wilson
from tarsy_scoring.labels.labels import Review, keep_reviews

NOW = datetime.now(UTC).replace(microsecond=0)
CRITERIA = {"criteria": "by-outcome", "criteria_hash": "hash-of-outcome"}
TOTALS = {"correct": 80, "wrong": 20}
# Chain, what people say, what the judge says, and how many sessions: 25 of 50 and 5 of 50 are opposite.
SESSIONS = (
    *(("disks", "wrong", "correct", 17), ("disks", "correct", "wrong", 8)),
    *(("disks", "correct", "correct", 15), ("disks", "wrong", "wrong", 10)),
    *(("pods", "wrong", "correct", 3), ("pods", "correct", "wrong", 2)),
    *(("pods", "correct", "correct", 25), ("pods", "wrong", "wrong", 20)),
)


async def fill(url: str) -> None:
    """
    Store the reviewed sessions and 100 others, with totals of 80.

    A later score with a reference says what people say: it is left out, because its judge was told.
    """
    bands = {"bands": {"correct": [60, 100], "partial": [35, 59], "wrong": [0, 34]}}
    async with open_scoring(url) as scoring:
        await scoring.store.keep_criteria("hash-of-outcome", "by-outcome", bands)
        reviews = []
        for chain, people, judge, count in SESSIONS:
            for n in range(count):
                session_id = f"{chain}-{people}-{judge}-{n}"
                tags = ["late"] if judge == "wrong" else []
                more = {"failure_tags": tags, "score_analysis": f"it is <b>{judge}</b>"}
                await judged(scoring, session_id, judge, chain, **more)
                at = NOW - timedelta(seconds=len(reviews))
                reviews.append(Review(session_id, "ada", at, people, f"people say {people}"))
        for n in range(100):
            await judged(scoring, f"other-{n}", "correct", "pods")
        told = {"reference": {"provided_by": "x"}}
        await judged(scoring, reviews[0].session_id, reviews[0].outcome, "disks", at=NOW, **told)
        assert await keep_reviews(scoring.database, [r.session_id for r in reviews], reviews) == 100


async def judged(scoring: Scoring, session_id: str, said: str, chain: str, **columns: Any) -> None:
    at = columns.pop("at", NOW - timedelta(hours=1))
    columns |= {"judge_outcome": said, "session": {"chain_id": chain}}
    await store_score(scoring, session_id, TOTALS[said], at=at, **columns, **CRITERIA)


def printed(command: Any, *arguments: str) -> str:
    ended = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return str(ended.stdout)


def test_a_judge_that_disagrees(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    By hand, of the table [wrong, correct] x [wrong, correct] = [[30, 20], [10, 40]].

    Observed agreement 0.70, by chance 0.5 x 0.4 + 0.5 x 0.6 = 0.50, so kappa is 0.40. Its variance is
    (0.3 x 0.46^2 + 0.4 x 0.34^2 + 0.36 x (0.2 x 0.9^2 + 0.1 x 1.1^2) - 0.1^2) / (100 x 0.5^2) = 0.008064, and
    0.40 +- 1.96 x 0.0898 is 0.224 to 0.576. The labelled totals are 60 x 80 + 40 x 20 = 5,600.
    """
    run_apart(fill(database_url))
    monkeypatch.setenv("SCORING_DATABASE_URL", database_url)

    [card] = json.loads(printed(calibrate, "--json"))["calibrations"]
    found = json.loads(printed(report, "disagreements", "--json"))
    of_disks = json.loads(printed(report, "disagreements", "--chain", "disks", "--json"))
    none = json.loads(printed(report, "disagreements", "--since", (NOW + timedelta(days=1)).isoformat(), "--json"))

    assert card["confusion"]["counts"] == [[30, 0, 20], [0, 0, 0], [10, 0, 40]]
    assert [round(card["kappa"][key], 3) for key in ("value", "low", "high")] == [0.4, 0.224, 0.576]
    assert (card["sources"], card["matched"]) == ({"tarsy": 100}, 100)
    assert card["coverage"] == {"scored": 200, "labelled": 100, "mean_labelled": 56.0, "mean_others": 80.0}
    assert "100 of 200 scored sessions have a label" in card["meaning"]
    assert (found["labelled"], found["disagreeing"], len(found["sessions"])) == (100, 30, 30)
    counts = {kind: [list(one.values()) for one in found[kind]] for kind in ("by_chain", "by_tag")}
    assert counts == {
        "by_chain": [["disks", 50, 25, True], ["pods", 50, 5, False]],
        "by_tag": [["late", 40, 10, False]],
    }
    first = found["sessions"][0]
    assert [first[key] for key in ("session_id", "judge", "people")] == ["disks-wrong-correct-0", "correct", "wrong"]
    assert (first["analysis"], first["labels"][0]["reason"]) == ("it is <b>correct</b>", "people say wrong")
    assert [one["at"] for one in found["sessions"]] == sorted((one["at"] for one in found["sessions"]), reverse=True)
    assert (of_disks["labelled"], of_disks["disagreeing"], none["labelled"]) == (50, 25, 0)
    for_people = printed(report, "disagreements")
    assert "Judge and people say the opposite of 30 of 100 labelled sessions." in for_people
    assert re.search(r"disks +50 +25  more than chance allows", for_people)
    monkeypatch.setattr(labels, "COUNTED", labels.COUNTED.replace(f"LIMIT {labels.MOST_COUNTED}", "LIMIT 1"))
    period = json.loads(printed(report, "disagreements", "--since", (NOW - timedelta(seconds=9)).isoformat(), "--json"))
    assert period["labelled"] == 1, "the newest labels of the period count"


def test_pages_show_both_reasons(database_url: str) -> None:
    async def looked() -> dict[str, str]:
        await fill(database_url)
        async with open_api(database_url) as api:
            paths = ("/disagreements", "/disagreements?chain=pods", "/disagreements?since=x", "/week", "/review")
            answers = [(path, await api.client.get(path, headers={"Accept": "text/html"})) for path in paths]
            return {path: f"{answer.status_code} {answer.text}" for path, answer in answers}

    pages = run_apart(looked())
    texts = {path: " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split()) for path, html in pages.items()}

    assert "30 of 100 labelled sessions" in texts["/disagreements"]
    assert "disks more than chance allows 50 25 50 %" in texts["/disagreements"]
    assert "it is &lt;b&gt;correct&lt;/b&gt;" in pages["/disagreements"]
    assert texts["/disagreements"].count("(review in TARSy): people say wrong") == 20
    assert "5 of 50 labelled sessions" in texts["/disagreements?chain=pods"]
    assert texts["/disagreements?since=x"].startswith("422")
    needs = "opposite of 30 of 100 sessions labelled this week, more than chance allows in disks"
    assert f"Judge and people say the {needs}" in texts["/week"]
    assert "0.40 (0.22 to 0.58)" in texts["/review"]
    assert "Reviews in TARSy 100" in texts["/review"]


SHARES = [(25, 50, (0.366, 0.634)), (0, 10, (0.0, 0.278)), (10, 10, (0.722, 1.0)), (0, 0, (0.0, 1.0))]


@pytest.mark.parametrize(("hits", "n", "interval"), SHARES)
def test_the_interval_of_a_share(hits: int, n: int, interval: tuple[float, float]) -> None:
    assert wilson(hits, n) == pytest.approx(interval, abs=0.0005)
