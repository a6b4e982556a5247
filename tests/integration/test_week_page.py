"""The page of the week: chains beside the week before, and what needs a person."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from test_pages_served import Page, look

from api_site import SETTINGS, Api, open_api
from stored import store_score
from tarsy_scoring.analytics.recount import recount_all
from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.dead_letters.dead_letters import note_failure
from tarsy_scoring.events import Origin

NOW = datetime.now(UTC).replace(hour=0, minute=0, second=1, microsecond=0)
EVIL = "<script>alert(1)</script>"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url) as opened:
        yield opened


async def scores(api: Api, chain: str, totals: list[int], days_ago: int, **columns: Any) -> None:
    for number, total in enumerate(totals):
        session = f"{chain.strip('<>()/')}-{days_ago}-{number}"
        at = NOW - timedelta(days=days_ago)
        of = {"chain_id": chain} | columns.get("session", {})
        await store_score(api.scoring, session, total, at=at, **columns | {"session": of})


def row_of(page: Page, chain: str) -> str:
    """The cells of a chain, without tags."""
    [row] = [r for r in page.html.partition("<tbody>")[2].split("<tr>") if f">{chain}</a>" in r]
    return " ".join(Page(f"<table><tr>{row}</table>").text.split())


async def test_a_chain_stands_beside_its_week_before(api: Api) -> None:
    """Totals of six days ago count in this week, those of seven days ago in the week before."""
    for days in (0, 6):
        await scores(
            api, "worse", [50, 52, 48, 62, 51], days, outcome="fail", pass_threshold=60, usage={"cost_usd": 0.5}
        )
    for days in (7, 13):
        await scores(
            api, "worse", [80, 82, 78, 81, 79], days, outcome="pass", pass_threshold=60, usage={"cost_usd": 0.25}
        )
    await scores(api, "worse", [10, 10], 14)
    await scores(api, "same", [60, 61, 62, 60, 61], 1)
    await scores(api, "same", [61, 60, 62, 61, 60], 8)
    await scores(api, "few", [50], 1)
    await scores(api, "few", [90], 8)

    for is_counted in (False, True):
        if is_counted:
            await recount_all(api.scoring.database)
        page = await look(api, "/week")
        worse = row_of(page, "worse")
        for cell in ("10 10 before", "52.6 80.0 before", "-27.4 ± ", "0 % 100 % before", "$5.00 $2.50 before"):
            assert cell in worse
        assert 'class="chip weak">-27.4' in page.html
        assert "+0.0 ± " in row_of(page, "same")
        assert "-40.0 too few" in row_of(page, "few")
        assert "1 chain got worse: worse (-27.4 points)" in " ".join(page.text.split())


async def test_counts_that_moved_most_and_the_worst_scores(api: Api) -> None:
    """Neither a replaced score, nor one of another kind, nor a doubtful one is among the worst."""
    named = {"failure_tags": ["wrong_conclusion", EVIL], "missing_tools": ("sql_query",)}
    await scores(api, "worse", [80, 82, 78, 81, 79], 8, failure_tags=["late"])
    await scores(api, "worse", [20, 45, 50, 40, 45], 1, **named)
    await scores(api, "quiet", [50, 60, 70], 8, failure_tags=["late"])
    await scores(api, "quiet", [50, 60, 70], 1)
    await scores(api, "worse", [0], 4, flags=["tampering_suspected"])
    await store_score(api.scoring, "worse-1-1", 1, at=NOW - timedelta(hours=3), purpose="shadow")
    await store_score(api.scoring, "again", 0, at=NOW - timedelta(days=5), session={"chain_id": "worse"})
    await store_score(api.scoring, "again", 90, at=NOW - timedelta(days=4))

    page = await look(api, "/week")

    row = row_of(page, "worse")
    assert "late 0, 5 before" in row
    assert "wrong conclusion 5, 0 before" in row
    assert len(re.findall(r", \d+ before", row)) == 3
    assert "late 0, 3 before" not in page.text, "no total moved beyond chance"
    assert EVIL not in page.html
    worst = [await look(api, str(a["href"])) for a in page.all("a") if str(a["href"]).startswith("/scores/")]
    assert [re.findall(r"worse-\d-\d", one.text)[0] for one in worst if "worse" in one.text] == [
        "worse-1-0",
        "worse-1-3",
    ]


async def test_what_needs_a_person_is_named_with_its_kind(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A failure counts until its session has a newer score; failures of the week before do not count.

    A new installation has no chain that is missed.
    """
    assert "Nothing: judging is not paused, no score waits for a label" in (await look(api, "/week")).text
    monkeypatch.setitem(SETTINGS.config.chains, "planned", ChainSettings())
    monkeypatch.setitem(SETTINGS.config.chains, "off", ChainSettings(enabled=False))
    empty = await look(api, "/week")
    await scores(api, "silent", [50], 8)
    failed = {"status": "failed", "error_kind": "refused"}
    in_evil = {"session": {"chain_id": EVIL}}
    for session, days in (("a", 1), ("b", 2), ("retried", 2), ("old", 8)):
        await store_score(api.scoring, session, at=NOW - timedelta(days=days), **in_evil, **failed)
    await store_score(api.scoring, "retried", 60, at=NOW - timedelta(days=1), **in_evil)
    await note_failure(api.scoring.database, Origin("session-completed", 0, 7, 0))

    fresh = await look(api, "/week")
    await scores(api, "long-ago", [50], 14)
    page = await look(api, "/week")

    assert "No score was completed since" in empty.text
    assert "tarsy-scoring backfill" in empty.text
    assert "planned" not in empty.text
    assert "planned" not in fresh.text
    assert "the score of 2 sessions failed. The judge refused to answer." in page.text
    assert EVIL not in page.html
    assert "silent : no score, 1 the week before" in " ".join(page.text.split())
    assert "Configured, but without a score for 14 days: planned." in page.text
    assert "1 message is a dead letter" in page.text


async def test_a_pause_is_named_with_who_since_when_and_why(api: Api) -> None:
    """Also a pause that holds no score up."""
    await api.scoring.rows(
        "INSERT INTO pauses (chain_id, paused_by, reason, since) VALUES ('kubernetes', 'ada', $1, $2)", EVIL, NOW
    )
    await api.scoring.rows("INSERT INTO pauses (provider, paused_by) VALUES ('openai', 'bob')")

    page = await look(api, "/week")

    assert f"chain 'kubernetes': paused since {NOW:%Y-%m-%d} 00:00 UTC by ada ({EVIL})" in unescape(page.html)
    assert EVIL not in page.html
    assert "provider 'openai': paused since" in page.text
    assert "Nothing:" not in page.text
