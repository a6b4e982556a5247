"""The page of the week: chains beside the week before, and what needs a person."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from test_drift_pages import plant_finding
from test_pages_served import Page, look

from api_site import SETTINGS, Api, open_api
from builders import DEFAULT_CRITERIA
from stored import store_score
from tarsy_scoring.analytics.rollup_keeping import RollupKeeper
from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.dead_letters.letter_states import note_failure
from tarsy_scoring.errors import InvalidMessage
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
        await scores(api, "worse", [50, 52, 48, 62, 51], days, outcome="fail", usage={"cost_usd": 0.5})
    for days in (7, 13):
        await scores(api, "worse", [80, 82, 78, 81, 79], days, outcome="pass", usage={"cost_usd": 0.25})
    await scores(api, "worse", [10, 10], 14)
    await scores(api, "same", [60, 61, 62, 60, 61], 1)
    await scores(api, "same", [61, 60, 62, 61, 60], 8)
    await scores(api, "few", [50], 1)
    await scores(api, "few", [90], 8)

    for is_folded in (False, True):
        if is_folded:
            await RollupKeeper(api.scoring.database).run_once()
        page = await look(api, "/week")
        worse = row_of(page, "worse")
        assert "10 scores, 20 % right, 27.4 points lower than the week before" in worse
        for cell in ("10 10 before", "52.6 -27.4 80.0 before", "20 % 100 % before", "0 % 100 % before", "$5.00 $2.50"):
            assert cell in worse
        assert "no clear difference from the week before" in row_of(page, "same")
        assert "too few to tell a difference from the week before (1 and 1 scores)" in row_of(page, "few")
        assert "1 chain got worse: worse, 80.0 to 52.6 (10 and 10 scores)." in page.text


async def test_the_number_of_scores_leads_to_as_many(api: Api) -> None:
    """A session that ended before the week and was scored in it counts; a doubtful total is left out of the mean."""
    ended = NOW - timedelta(days=30)
    for session, total, flags in (("a", 50, []), ("b", 3, ["tampering_suspected"])):
        of = {"chain_id": "late", "ended": ended}
        await store_score(api.scoring, session, total, at=NOW - timedelta(days=1), session=of, flags=flags)
    await scores(api, "late", [90], 8)

    page = await look(api, "/week")

    row = row_of(page, "late")
    assert "2 scores (1 left out), 0 % right" in row
    assert "2 (1 left out) 1 before 50.0 90.0 before" in row
    since = (NOW - timedelta(days=6)).date()
    assert page.all("a", href=f"/trends?chain=late&since={since}", **{"aria-label": "2 scores: show their days"})
    assert 'data-name="Scores">2</td>' in (await look(api, f"/trends?chain=late&since={since}")).html


# --- why -----------------------------------------------------------------------------------------------

HAD, LACKED = ["logs", "sqlquery"], ["logs"]


async def week_without_a_tool(api: Api) -> None:
    """A chain that got worse, and one that did not; agents of both lost the tool `sql_query`."""
    for tools_hash, names in (("had", HAD), ("lacked", LACKED)):
        await api.scoring.rows("INSERT INTO tool_lists (tools_hash, names) VALUES ($1, $2)", tools_hash, names)
    for chain, now in (("worse", [20, 45, 50, 40, 45]), ("same", [80, 82, 78, 81, 79])):
        for days in (8, 9):
            session = {"labels": {"version": "v1"}}
            await scores(api, chain, [80, 82, 78, 81, 79], days, tools_hash="had", session=session)
        for days in (1, 2):
            more = {
                "tools_hash": "lacked",
                "failure_tags": ["wrong_conclusion", EVIL],
                "session": {"labels": {EVIL: "v2"}},
            }
            await scores(api, chain, now, days, missing_tools=("sql_query", "SQL-Query"), **more)


def why_of(page: Page) -> str:
    """The text of the section that says why totals fell."""
    section = page.html.partition('aria-labelledby="why"')[2].partition("</section>")[0]
    return " ".join(unescape(Page(f"<section>{section}</section>").text).split())


async def test_a_chain_that_got_worse_says_what_else_differs(api: Api) -> None:
    """Before and after the deltas are folded. A score counts once, however it spells a tool."""
    await week_without_a_tool(api)

    for is_folded in (False, True):
        if is_folded:
            await RollupKeeper(api.scoring.database).run_once()
        page = await look(api, "/week")
        why = why_of(page)
        assert "1 chain got worse: worse, 80.0 to 40.0 (10 and 10 scores). In worse, agents had the tool" in page.text
        assert "worse 80.0 to 40.0 (10 and 10 scores)" in why
        assert "same" not in why
        numbers = "in 10 of 10 scores (100 %), before in 0 of 10 (0 %)"
        assert f"Judges missed the tool SQL-Query more often than the week before: {numbers}" in why
        assert f"Judges named the failure wrong conclusion more often than the week before: {numbers}" in why
        assert f"Sessions had the label {EVIL}=v2 more often than the week before: {numbers}" in why
        lost = "in 0 of 10 scores (0 %), before in 10 of 10 (100 %)"
        assert f"Agents had the tool SQL-Query less often than the week before: {lost}" in why
        assert "does not say why" not in why
        assert EVIL not in page.html


async def test_a_fall_leads_to_its_worst_scores(api: Api) -> None:
    """Each link opens what it promises, with the filters of the chain and the week."""
    await week_without_a_tool(api)
    for days in (1, 2):  # replaced, of another judge, doubtful, of another week: no worst score of this week
        await store_score(api.scoring, f"worse-{days}-1", 1, at=NOW - timedelta(days=days, hours=-1), purpose="shadow")
    await scores(api, "worse", [0], 3, judge_fingerprint="judge-2")
    await scores(api, "worse", [0], 4, flags=["tampering_suspected"])
    at = NOW - timedelta(days=5)
    await store_score(api.scoring, "again", 0, at=at, session={"chain_id": "worse"})
    await store_score(api.scoring, "again", 90, at=at + timedelta(hours=1))

    page = await look(api, "/week")

    links = [str(link["href"]) for link in page.all("a")]
    worst = [await look(api, link) for link in links if link.startswith("/scores/")]
    assert [re.findall(r"worse-\d-0", one.text)[0] for one in worst] == ["worse-1-0", "worse-2-0"]
    week = f"since={(NOW - timedelta(days=6)).date()}&until={NOW.date()}"
    assert f"/missing-tools?chain=worse&{week}" in links
    assert f"/failure-tags?chain=worse&{week}" in links
    listed = await look(api, f"/?chain=worse&{week}&sort=score_asc")
    assert listed.html.index("worse-1-0") < listed.html.index("worse-1-3")
    assert "worse-8-0" not in listed.html
    [labelled] = [link for link in links if "label=" in link]
    assert "worse-1-0" in (await look(api, labelled)).html


async def test_where_nothing_else_differs_no_cause_is_named(api: Api) -> None:
    await scores(api, "worse", [80, 82, 78, 81, 79], 8, failure_tags=["missed_evidence"])
    await scores(api, "worse", [40, 42, 38, 41, 39], 1, failure_tags=["missed_evidence"])
    await scores(api, "few", [60], 8)
    await scores(api, "few", [50], 1, failure_tags=["wrong_conclusion"])

    page = await look(api, "/week")

    assert "In worse, nothing else that is stored differs by more than chance gives." in page.text
    assert "The data does not say why" in why_of(page)
    assert "few" not in why_of(page)


async def test_the_largest_fall_is_described_where_no_chain_got_clearly_worse(api: Api) -> None:
    await scores(api, "few", [60, 62], 8)
    await scores(api, "few", [50, 52], 1, failure_tags=["wrong_conclusion"])

    page = await look(api, "/week")

    assert "No chain got clearly worse; the largest fall is few, 61.0 to 51.0" in page.text
    assert "few 61.0 to 51.0 (2 and 2 scores: too few to tell)" in why_of(page)
    named = "Named by judges more often, but no more than chance gives: wrong conclusion (in 2 of 2 scores, before in 0"
    assert named in why_of(page)


async def test_a_judge_that_is_new_this_week_is_part_of_the_why(api: Api) -> None:
    await week_without_a_tool(api)
    await scores(api, "worse", [10], 3, judge_fingerprint="judge-2")

    why = why_of(await look(api, "/week"))

    assert f"Another judge since {(NOW - timedelta(days=3)).date()} ({DEFAULT_CRITERIA})" in why


async def test_another_judge_is_a_change_and_no_difference(api: Api) -> None:
    await scores(api, "kubernetes", [50, 52, 48, 62, 51], 1, judge_fingerprint="judge-2")
    await scores(api, "kubernetes", [80, 82, 78, 81, 79], 8)

    row = row_of(await look(api, "/week"), "kubernetes")

    assert "not comparable with the week before: another judge" in row
    assert f"Another judge since {(NOW - timedelta(days=1)).date()} ({DEFAULT_CRITERIA})" in row


async def test_a_change_that_began_this_week_comes_first(api: Api) -> None:
    """A look finds changes that began earlier, too: these say when, and come last."""
    await plant_finding(api)
    began = NOW - timedelta(days=2)
    await api.scoring.rows(
        "INSERT INTO drift_findings SELECT (jsonb_populate_record(f, jsonb_build_object('event_id', gen_random_uuid(), "
        "'began_at', $1::timestamptz, 'found_at', f.found_at - interval '1 hour'))).* FROM drift_findings f",
        began,
    )
    old = (await api.scoring.value("SELECT min(began_at) FROM drift_findings")).date()

    changes = row_of(await look(api, "/week"), "kubernetes").partition("the judge changed")[2]

    this_week, _, earlier = changes.partition("Found this week")
    assert f"since about {began.date()}." in this_week
    assert f", began about {old}: the judge changed, by " in earlier


async def test_what_needs_a_person_is_named_with_its_kind(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure counts until its session has a newer score; failures of the week before do not count."""
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
    await note_failure(api.scoring.database, Origin("session-completed", 0, 7, 0), InvalidMessage("not_json", "x"))

    page = await look(api, "/week")

    assert "No score was completed since" in empty.text
    assert "tarsy-scoring backfill" in empty.text
    assert "Configured, but without a score for 14 days: planned." in empty.text
    assert "the score of 2 sessions failed. The judge refused to answer." in page.text
    assert EVIL not in page.html
    assert "silent : No score; 1 the week before" in page.text
    assert "Configured, but without a score for 14 days: planned." in page.text
    assert "1 message is a dead letter" in page.text
    assert page.all("a", href="/dead-letters")


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


async def test_scores_to_label_are_counted(api: Api) -> None:
    await scores(api, "kubernetes", [60, 70], 1)
    page = await look(api, "/week")
    assert "2 scores wait for a label" in page.text
    assert page.all("a", href="/review")
