"""Labels, the trust card, the review queue and the ledger of missing tools, as somebody uses them in a browser."""

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect
from visiting import House, Visits

from tarsy_scoring_lab.scripted_judge import Fault

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE = "<script>alert('element')</script>\"><img src=x onerror=\"alert('attribute')\">{{ 7 * 191 }}"
HOSTILE_TOOL = "node<img src=x onerror=alert(1)>pressure"
# As if they had been completed on a day that is over, whatever the time is now.
AGE = "UPDATE session_scores SET completed_at = now() - interval '30 hours' WHERE session_id LIKE 'quality-%'"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scored(house: House) -> AsyncIterator[House]:
    """Sessions of a day that is over, whose judge asks for a tool under two names and for one that means harm."""
    wanted = {"quality-1": "node_pressure", "quality-2": "node_pressures", "quality-3": f"`{HOSTILE_TOOL}`"}
    for name, tool in wanted.items():
        reply = f"1. **{tool}**: it would have shown what was guessed."
        house.service.judge.script(Fault(kind="reply", match=f"alert of {name}", turn="missing_tools", content=reply))
        await house.score(name, alert_data=f"The alert of {name}")
    await house.service.rows(AGE)
    yield house


def tool(page: Page, name: str) -> Locator:
    """The row of a tool in the ledger."""
    named = page.locator("th.name").filter(has_text=re.compile(rf"^\s*{re.escape(name)}\b"))
    return page.locator("table.list > tbody > tr").filter(has=named)


async def test_a_label_moves_the_trust_card(scored: House, visit: Visits) -> None:
    """From the queue to the score, said with a reason that means harm, and counted where somebody was asked."""
    visitor = await visit("/review")
    link = visitor.page.locator('th a[href*="#labels"]').first
    await visitor.follow(link)
    card = visitor.page.locator(
        "section", has=visitor.page.get_by_role("heading", name="Agreement of the judge with reviewers")
    )
    count = card.locator("dt", has_text="Labels that count").locator("xpath=following-sibling::dd")
    await expect(count).to_have_text("0")

    form = visitor.page.locator("#label-form")
    await form.get_by_label("Is this score right?").select_option(label="Yes, band and total are right")
    await form.get_by_label("Why").fill(HOSTILE)
    await visitor.follow(form.get_by_role("button"))

    assert visitor.page.url.endswith("#labels")
    await expect(count).to_have_text("1")
    said = visitor.page.locator("#labels li")
    await expect(said).to_contain_text("agrees")
    await expect(said.locator(".held")).to_have_text(HOSTILE)
    await visitor.open("/review")
    await expect(visitor.page.locator("main")).to_contain_text("2 without a label")
    await visitor.picture("review")


async def test_a_merge_is_undone_and_a_state_is_said(scored: House, visit: Visits) -> None:
    """By keyboard, with a day and a note; what judges and people write is text."""
    visitor = await visit("/missing-tools")
    page = visitor.page
    await expect(tool(page, HOSTILE_TOOL)).to_have_count(1)
    pressure = page.locator("table.list > tbody > tr", has_text="written as")
    await pressure.locator("summary").focus()
    await page.keyboard.press("Enter")
    await expect(pressure).to_contain_text("merged by its spelling")
    async with page.expect_navigation():
        await pressure.get_by_role("button", name="Separate").press("Enter")
    await expect(tool(page, "node_pressures")).to_have_count(1)
    await expect(tool(page, "node_pressure")).to_have_count(1)

    single = tool(page, "node_pressure")
    await single.locator("summary").click()
    await single.get_by_label("State").select_option("planned")
    await single.get_by_label("improved since (UTC)").fill("2026-01-05")
    await single.get_by_label("Note").fill(HOSTILE)
    async with page.expect_navigation():
        await single.get_by_label("Note").press("Enter")
    await expect(single.locator(".chip", has_text="planned")).to_have_count(1)
    await single.locator("summary").click()
    await expect(single).to_contain_text("set planned since 2026-01-05")
    await expect(single).to_contain_text(HOSTILE)

    await single.get_by_label("Is the same as").fill("node_pressures")
    async with page.expect_navigation():
        await single.get_by_role("button", name="Merge").click()
    await expect(page.locator("table.list > tbody > tr", has_text="written as")).to_have_count(1)
    await expect(page.locator("main img, main script")).to_have_count(0)
    await visitor.picture("missing-tools-decided")
