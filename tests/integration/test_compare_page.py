"""The page that compares two scores of one session."""

import uuid
from collections.abc import AsyncIterator

import pytest
from test_pages_served import look, scored

from api_site import Api, open_api
from attempting import a_timeline
from builders import failure
from fakes import FakeSessions
from tables import table
from tarsy_scoring.judge.verdict import MissingTool


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url, FakeSessions(**{"session-1": a_timeline(session_id="session-1")})) as api:
        yield api


async def test_the_history_leads_to_a_comparison_of_two_scores(api: Api) -> None:
    """What differs, with its difference; names by the scores that have them; both analyses."""
    tool, same = MissingTool("node_pressure", "memory"), MissingTool("Get_Logs", "logs")
    first = await scored(
        api,
        total=40,
        score_breakdown={"logical_flow": 10.5, "consistency": 20},
        missing_tools=[tool, same],
        flags=["ungrounded"],
        score_analysis="It is <b>weak</b>.",
    )
    second = await scored(
        api,
        total=71,
        score_breakdown={"logical_flow": 20, "consistency": 20},
        missing_tools=[MissingTool("get_logs", "logs")],
        score_analysis="It is good.",
    )

    session = await look(api, "/sessions/session-1")
    assert len(session.all("a", href=f"/scores/compare?a={first}&b={second}")) == 1
    page = await look(api, f"/scores/compare?a={first}&b={second}")

    for shown in (
        *(
            "Total 40 71 +31",
            "Logical flow 10.5 20 +9.5",
            "Consistency 20 20 same",
            "It is <b>weak</b>.",
            "It is good.",
        ),
        "Missing tools node_pressure, Get_Logs get_logs differs",
        "Flags ungrounded – differs",
        "Both are of the same judge",
    ):
        assert shown in page.text, shown


async def test_the_same_judgement_twice_shows_its_analysis_once(api: Api) -> None:
    first, second = [await scored(api, score_analysis="It is good.") for _ in range(2)]

    page = await look(api, f"/scores/compare?a={first}&b={second}")

    assert "Both analyses are the same, word for word." in page.text
    assert "Total 67 67 same" in page.text


@table
async def test_totals_of_different_judges_do_not_compare(change: str, reason: str, *, api: Api) -> None:
    first, second = await scored(api, total=40), await scored(api, total=71)
    await api.scoring.rows(f"UPDATE session_scores SET {change} WHERE score_id = $1", second)

    page = await look(api, f"/scores/compare?a={first}&b={second}")

    assert "Do not compare the totals." in page.text
    assert reason in page.text


async def test_a_failed_score_has_nothing_to_subtract(api: Api) -> None:
    first = await scored(api)
    claimed = await api.scoring.claimed("session-1")
    await api.scoring.store.end(failure(claimed))

    page = await look(api, f"/scores/compare?a={first}&b={claimed.score_id}")

    assert "One of them has no total" in page.text
    assert "Total 67 – differs" in page.text


async def test_scores_that_cannot_be_compared_are_refused_in_words(api: Api) -> None:
    score, other, unknown = await scored(api), await scored(api, "another"), uuid.UUID(int=7)
    for query, status, reason in (
        (f"a={score}&b={other}", 400, "the two scores are of different sessions"),
        (f"a={score}&b={unknown}", 404, f"there is no score {unknown}"),
        (f"a={unknown}&b={score}", 404, f"there is no score {unknown}"),
        (f"a={score}", 422, "the address needs the ids of two scores"),
        (f"a={score}&b=<b>", 422, "the address needs the ids of two scores"),
        (f"a={score}&b={score}&c=1", 422, "a field that this page does not have"),
    ):
        assert reason in (await look(api, f"/scores/compare?{query}", status)).text.replace("The", "the"), query
