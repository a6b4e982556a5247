"""Drift over HTTP and on its page, on a real database: findings, conclusions, and missing anchors."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api_site import Api, open_api
from builders import DEFAULT_CRITERIA
from drift_rows import look as look_at_chain
from drift_rows import plant_judgements, plant_scores, totals
from tarsy_scoring.studies import anchors

AS_BROWSER = {"Accept": "text/html,*/*;q=0.8", "X-Forwarded-User": "alice"}
PATH = "analytics/drift"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url) as opened:
        yield opened


async def look(api: Api, path: str) -> str:
    answer = await api.client.get(path, headers=AS_BROWSER)
    assert answer.status_code == 200, answer.text
    return re.sub(r"\s+", " ", answer.text)


async def findings_of(api: Api, **query: Any) -> Any:
    answer = await api.get(PATH, **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def plant_finding(api: Api, chain: str = "kubernetes") -> list[str]:
    """Store a finding that the judge is ten points milder; returns the anchors, one of them gone."""
    scoring, begin = api.scoring, datetime.now(UTC) - timedelta(hours=720)
    before = await plant_scores(scoring, "judge-old", totals(60, 340), begin=begin, chain=chain)
    chosen = before[:31]
    await anchors.add(scoring.database, chosen, by="ada")
    await plant_judgements(scoring, "judge-old", dict.fromkeys(chosen, 60), chain=chain)
    await plant_judgements(scoring, "judge-new", dict.fromkeys(chosen[:30], 70), chain=chain)
    after = begin + timedelta(hours=350)
    await plant_scores(scoring, "judge-new", totals(70, 310, seed=2), begin=after, chain=chain)
    await scoring.rows(
        "INSERT INTO session_scores (session_id, request_id, priority, score_triggered_by, status, purpose, "
        "error_kind, completed_at) VALUES ($1, gen_random_uuid(), 2, 'anchors', 'failed', 'anchor', "
        "'session_not_found', now())",
        chosen[30],
    )
    assert await look_at_chain(scoring, datetime.now(UTC), chain) == "sessions"
    return chosen


async def test_findings_have_their_parts(api: Api) -> None:
    """Filtered by chain, criteria and time."""
    chosen = await plant_finding(api)

    everything = await findings_of(api)
    [finding] = everything["findings"]
    assert (finding["cause"], finding["is_clear"], finding["anchors"]) == ("judge", True, 30)
    assert finding["judge"]["value"] == 10
    assert finding["meaning"][0].startswith("The judge changed: the same sessions get +10.0 (")
    assert everything["anchors"] == {"judged": 30, "gone": 1}
    assert [a["session_id"] for a in everything["anchors_not_judged"]] == [chosen[30]]

    for same in ({"chain": "kubernetes", "criteria": DEFAULT_CRITERIA}, {"since": finding["found_at"]}):
        assert (await findings_of(api, **same))["findings"] == [finding]
    for nothing in ({"chain": "databases"}, {"criteria": "cli-tool-use"}, {"since": "2999-01-01T00:00:00Z"}):
        assert (await findings_of(api, **nothing))["findings"] == []


async def test_a_finding_stands_on_the_week_until_a_person_confirms_it(api: Api) -> None:
    await plant_finding(api)
    week = await look(api, "/week")
    [address] = re.findall(r'action="(/week/drift/[^"]+)"', week)
    assert "The judge changed: the same sessions get +10.0 (" in week
    assert "Drift" not in re.sub(r"(?s)<nav.*</nav>", "", await look(api, "/"))

    for person in ("ada", "bob"):  # the first one stays
        answer = await api.client.post(address, headers=AS_BROWSER | {"X-Forwarded-User": person})
        assert (answer.status_code, answer.headers["location"]) == (303, "/week#needs")

    assert "The judge changed" not in await look(api, "/week")
    assert "The judge changed" in await look(api, "/drift")
    [finding] = await api.scoring.rows("SELECT confirmed_by FROM drift_findings")
    assert finding["confirmed_by"] == "ada"


async def test_the_page_shows_the_conclusion_of_a_finding(api: Api) -> None:
    """In words, in parts, as a table, and with the anchors that lack a judgement."""
    chosen = await plant_finding(api)

    html = await look(api, "/drift?chain=kubernetes")

    assert "<h2>The judge changed" in html
    assert "the same sessions get +10.0 (" in html
    assert "<dt>Judge's part</dt><dd>" in html
    assert "30 judged by the current judge; 1 gone: the source no longer has it." in html
    assert f'href="/sessions/{chosen[30]}"' in html
    assert "No change found" in await look(api, "/drift?chain=databases")
