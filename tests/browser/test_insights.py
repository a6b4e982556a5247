"""The pages across sessions in a browser: pictures with their numbers, filters, breaks where the judge changes."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from playwright.async_api import expect
from visiting import House, Visits

from tarsy_scoring_lab.scripted_judge import Fault

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAYS = 24
TODAY = datetime.now(UTC).replace(hour=0, minute=5, second=0, microsecond=0)
# Who judged on which of the last days, the oldest first.
JUDGES = "a" * 9 + "b" * 8 + "c" * 7

MOVE = """
UPDATE session_scores SET completed_at = $2, judge_fingerprint = repeat($3, 64), total_score = $4,
  failure_tags = $5::text::jsonb WHERE session_id = $1
"""
ENDED = "UPDATE sessions SET completed_at = $2, first_seen_at = $2 WHERE session_id = $1"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scored(house: House) -> AsyncIterator[House]:
    """Three scores a day for some weeks under three judges, one after the other; some of them with failures."""
    service = house.service
    names = [f"day-{day:02d}-{n}" for day in range(DAYS) for n in range(3)]
    for place, name in enumerate(names):
        chain = ("kubernetes", "databases", "network")[place % 3]
        service.add_session(name, chain_id=chain, alert_data=f"The alert of {name}")
    wanted = {"day-00-0": "read-file", "day-00-1": "Read File", "day-00-2": "read_files", "day-01-0": "get_pods"}
    for name, tool in wanted.items():
        reply = f"1. **{tool}**: it would have shown what was guessed."
        service.judge.script(Fault(kind="reply", match=name, turn="missing_tools", content=reply))
    await service.announce(*names)
    await service.scores_reach(len(names), "status = 'completed'", 60)
    for place, name in enumerate(names):
        day = place // 3
        total = 40 + day + (18 if JUDGES[day] == "b" else 0) + (0, 9, -14)[place % 3]
        tags = '["hallucinated_evidence"]' if total < 50 else "[]"
        await service.rows(MOVE, name, TODAY - timedelta(days=DAYS - 1 - day), JUDGES[day], total, tags)
        await service.rows(ENDED, name, TODAY - timedelta(days=DAYS - 1 - day))
    yield house


async def test_a_trend_breaks_where_the_judge_changes(scored: House, visit: Visits) -> None:
    """A line per judge, a dashed line and a word between them; the table beside says the same."""
    visitor = await visit("/trends")
    chart = visitor.page.locator("svg.chart")
    await expect(chart.locator("polyline.average")).to_have_count(3)
    await expect(chart.locator(".break")).to_have_count(2)
    dashes = await chart.locator(".break").first.evaluate("e => getComputedStyle(e).strokeDasharray")
    assert dashes != "none"
    assert await chart.locator(".break-word").all_text_contents() == ["judge 1", "new judge: 2", "new judge: 3"]
    strokes = [await line.evaluate("e => getComputedStyle(e).stroke") for line in await chart.locator(".average").all()]
    assert len(set(strokes)) == 3
    image = visitor.page.get_by_role("img", name="Totals per day")
    assert "72 scores from" in (await image.locator("desc").text_content() or "")
    await expect(visitor.page.locator("ul.judges li")).to_have_count(3)

    await visitor.page.get_by_text("Numbers as a table").click()
    rows = visitor.page.locator("#numbers tbody tr")
    await expect(rows).to_have_count(DAYS)
    await expect(visitor.page.locator("#numbers").get_by_text("another judge")).to_have_count(2)
    await expect(rows.first).to_contain_text(str((TODAY - timedelta(days=DAYS - 1)).date()))
    await visitor.picture("trends")


async def test_the_distribution_leads_to_the_sessions(scored: House, visit: Visits) -> None:
    """Bars and numbers are the stored ones, and a number is a link to what it counts."""
    visitor = await visit("/distribution?chain=kubernetes")
    counts = {
        name: await scored.service.count(f"chain_id = 'kubernetes' AND total_score BETWEEN {low} AND {high}")
        for name, low, high in (("good", 75, 100), ("fair", 50, 74), ("weak", 0, 49))
    }
    rows = visitor.page.locator('section[aria-label="Scores by band"] tbody tr')
    for row, (name, count) in zip(await rows.all(), counts.items(), strict=True):
        await expect(row).to_contain_text(name)
        await expect(row.locator("td").nth(1)).to_have_text(str(count))
    lengths = [float(await bar.get_attribute("width") or "") for bar in await visitor.page.locator(".filled").all()]
    assert [length > 0 for length in lengths] == [count > 0 for count in counts.values()]
    await expect(visitor.page.locator("caption", has_text="averages by category")).to_be_visible()
    await visitor.picture("distribution")
    await visitor.follow(visitor.page.get_by_role("link", name="totals 50 to 74"))
    assert len(await visitor.read_rows()) == counts["fair"]
    first = str((TODAY - timedelta(days=1)).date())
    await visitor.open(f"/distribution?since={first}")
    links = visitor.page.get_by_role("link", name="show the sessions with totals")
    told = [int(await link.inner_text()) for link in await links.all()]
    for place, number in enumerate(told):
        await visitor.open(f"/distribution?since={first}")
        await visitor.follow(links.nth(place))
        assert len(await visitor.read_rows()) == number
    assert sum(told) == 6, "the days of the form go with it"


async def test_missing_tools_are_one_ledger(scored: House, visit: Visits) -> None:
    """Spellings are merged and shown, and what agents already have is marked."""
    visitor = await visit("/missing-tools")
    read_file = visitor.page.locator("tbody tr", has_text="Read File")
    await expect(read_file).to_have_count(1)
    await expect(read_file).to_contain_text("read_files")
    await expect(read_file.get_by_text("exists")).to_have_count(0)
    await expect(visitor.page.locator("tbody tr", has_text="get_pods").get_by_text("exists")).to_be_visible()
    await visitor.picture("missing-tools")
    await visitor.page.get_by_label("Most wanted by").select_option("points lost")
    await visitor.show()
    lost = [
        int(t.replace(",", "")) for t in await visitor.page.locator('td[data-name="Points lost"]').all_inner_texts()
    ]
    assert lost == sorted(lost, reverse=True)
    chain = read_file.get_by_role("link", name="databases")
    await visitor.follow(chain)
    await expect(visitor.page.get_by_label("Chain")).to_have_value("databases")


async def test_the_pages_work_without_javascript_and_in_the_dark(scored: House, visit: Visits) -> None:
    """Pictures are part of the page."""
    visitor = await visit("/trends", java_script_enabled=False, color_scheme="dark")
    await expect(visitor.page.locator("svg.chart .average")).to_have_count(3)
    await visitor.picture("trends-dark")
    await visitor.follow(visitor.page.get_by_role("link", name="Distribution"))
    await expect(visitor.page.locator("svg.chart .filled")).to_have_count(3)
    await visitor.picture("distribution-dark")
