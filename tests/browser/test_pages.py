"""The pages in a browser: lists, live scoring, keyboard, no JavaScript and small screens."""

import re

import pytest
from playwright.async_api import Page, expect
from visiting import Installation, Visits

from tarsy_scoring_lab.scripted_judge import Fault

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Keeps every text that a session's badge has shown; a reload would lose them.
WATCH_BADGE = """id => {
  const read = () => document.querySelector(`.badge[data-session="${id}"]`)?.textContent.trim().replace(/\\s+/g, " ");
  window.shown = [read()];
  new MutationObserver(() => {
    const now = read();
    if (now && now !== window.shown.at(-1)) window.shown.push(now);
  }).observe(document.getElementById("main"), {subtree: true, childList: true, characterData: true});
}"""


async def shown_texts(page: Page) -> list[str]:
    texts: list[str] = await page.evaluate("window.shown")
    return texts


# --- scoring on an open page ---------------------------------------------------------------------------


async def test_from_click_to_badge_without_reload(installation: Installation, visit: Visits) -> None:
    """A click requests a score; the page shows its phases, then its total and analysis."""
    installation.service.add_session("watched-1")
    installation.service.hold("watched-1", "analysis")
    visitor = await visit("/sessions/watched-1")
    badge = visitor.page.locator('.badge[data-session="watched-1"]')
    await expect(badge).to_have_text("Not scored")
    await visitor.follow(visitor.page.get_by_role("button", name="Score session").first)
    await visitor.page.evaluate(WATCH_BADGE, "watched-1")
    await expect(badge).to_contain_text("Judging")
    facts = visitor.page.locator("#region-more dl.facts div")
    await expect(facts.filter(has_text="Attempt").locator("dd")).to_have_text("1")
    await expect(facts.filter(has_text="Started").locator("time")).to_be_visible()
    assert await installation.service.count("session_id = 'watched-1' AND status = 'in_progress'") == 1
    installation.service.judge.clear()
    installation.service.hold("watched-1", "missing_tools")
    await expect(badge).to_contain_text("Looking for missing tools")
    installation.service.judge.clear()
    row = await installation.service.score_becomes("watched-1", "completed")
    await expect(badge).to_contain_text(str(row["total_score"]))
    await expect(visitor.page.locator("#analysis")).to_contain_text("scripted stand-in")
    phases = await shown_texts(visitor.page)
    assert "Looking for missing tools" in phases, phases
    assert phases[-1].startswith(str(row["total_score"]))
    assert row["score_triggered_by"] == "api-client"


async def test_a_list_scores_in_place(installation: Installation, visit: Visits) -> None:
    """The row shows the new score and keeps the focus; of a refused form the page says why."""
    await installation.score("in-place-1")
    visitor = await visit("/?q=in-place-")
    await visitor.page.evaluate("window.isTheSame = true")
    await visitor.page.get_by_role("button", name="Re-score in-place-1").press("Enter")
    await expect(visitor.page.locator("#said")).to_have_text("Re-score in-place-1: requested")
    await expect(visitor.page.locator("#row-in-place-1")).to_be_focused()
    await installation.service.scores_reach(2, "session_id = 'in-place-1' AND status = 'completed'")
    again = visitor.page.get_by_role("button", name="Re-score in-place-1")
    assert await visitor.page.evaluate("window.isTheSame") is True
    async with visitor.page.expect_navigation():  # in one step, as an update may replace the form at any time
        await again.evaluate("button => { button.form.key.value = 'x'.repeat(200); button.click(); }")
    await expect(visitor.page.locator("h1")).to_have_text("Malformed request")


# --- without JavaScript, without a mouse, in the dark, on a small screen -------------------------------


async def test_without_javascript_everything_but_live_works(installation: Installation, visit: Visits) -> None:
    """Lists, filters, links and forms are plain HTML; a reload shows the new state of a score."""
    await installation.score("plain-1")
    visitor = await visit("/", java_script_enabled=False)
    await visitor.page.get_by_label("Session id or alert type begins with").fill("plain-")
    await visitor.show()
    assert await visitor.read_rows() == ["plain-1"]
    await expect(visitor.page.locator("#live-state")).to_be_hidden()
    await visitor.follow(visitor.page.locator("table.list th a"))
    await visitor.follow(visitor.page.get_by_role("button", name="Re-score").first)
    await installation.service.scores_reach(2, "session_id = 'plain-1' AND status = 'completed'")
    await visitor.page.reload()
    await expect(visitor.page.locator('#region-more a[href^="/scores/"]:not([href*="compare"])')).to_have_count(2)
    turns = visitor.page.locator("#turns")
    await turns.locator("summary").first.click()
    await expect(turns).to_contain_text("Analysis")
    navigation = visitor.page.get_by_role("navigation", name="Pages")
    drift = navigation.get_by_role("link", name="Drift")
    await expect(drift).to_be_hidden()
    await navigation.get_by_text("More pages").click()
    await visitor.follow(drift)
    await expect(drift).to_have_attribute("aria-current", "page")
    await expect(drift).to_be_visible()


async def test_a_citation_shows_its_entry_beside_the_text(installation: Installation, visit: Visits) -> None:
    """So does a line of the unfolded timeline. Without JavaScript, the entry is in view on the timeline's page."""
    content = "It read the logs (E4).\n\nOutcome: correct\n67"
    installation.service.judge.script(Fault(kind="reply", match="cited-1", turn="analysis", content=content))
    await installation.score("cited-1")
    visitor = await visit("/sessions/cited-1")
    panel, said = visitor.page.locator("#entry"), visitor.page.locator("#said")
    await expect(panel).to_be_hidden()
    await visitor.page.locator("#analysis").get_by_role("link", name="E4").press("Enter")
    await expect(panel).to_contain_text("It read the logs (E4).")
    await visitor.page.locator("#steps summary").click()
    entries = visitor.page.locator("#steps-list article")
    await expect(entries.first).to_be_visible()
    await expect(entries.locator("pre").first).to_be_hidden()
    await entries.get_by_role("link", name="E1", exact=True).click()
    await expect(panel.locator("pre")).to_be_visible()
    await expect(said).to_contain_text("Shown beside the text: E1")
    assert visitor.page.url.endswith("/sessions/cited-1")

    plain = await visit("/sessions/cited-1", java_script_enabled=False)
    await plain.follow(plain.page.locator("#analysis").get_by_role("link", name="E4"))
    await expect(plain.page.locator("#timeline-E4")).to_be_in_viewport()
    await expect(plain.page.locator("#timeline-E4")).to_contain_text("It read the logs (E4).")
    installation.service.judge.clear()


async def test_the_keyboard_is_enough(installation: Installation, visit: Visits) -> None:
    """The skip link comes first, focus is always visible, and Enter searches and scores."""
    await installation.score("keys-1")
    visitor = await visit("/")
    press = visitor.page.keyboard.press
    await press("Tab")
    await expect(visitor.page.locator("a.skip")).to_be_focused()
    await expect(visitor.page.locator("a.skip")).to_be_in_viewport()
    await press("Enter")
    await expect(visitor.page.locator("main")).to_be_focused()
    await press("Tab")
    search = visitor.page.get_by_label("Session id or alert type begins with")
    await expect(search).to_be_focused()
    await visitor.page.keyboard.type("keys-1")
    await press("Enter")
    await visitor.page.wait_for_url("**q=keys-1**")
    link = visitor.page.locator("table.list th a")
    for _ in range(40):
        await press("Tab")
        outline = await visitor.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", await visitor.page.evaluate("document.activeElement.outerHTML")
        if await link.evaluate("e => e === document.activeElement"):
            break
    await press("Enter")
    await visitor.page.wait_for_url("**/sessions/keys-1")
    await visitor.page.locator("#ask").focus()
    await press("Enter")
    await installation.service.scores_reach(2, "session_id = 'keys-1' AND status = 'completed'")


async def test_a_review_needs_two_keys(installation: Installation, visit: Visits) -> None:
    """A digit chooses and Enter saves; a digit in a field is text."""
    await installation.score("review-1")
    visitor = await visit("/review")
    chosen = visitor.page.locator("#said-3")
    await visitor.page.keyboard.press("3")
    await expect(chosen).to_be_focused()
    await visitor.page.get_by_label("Why").press("1")
    await expect(chosen).to_be_checked()
    async with visitor.page.expect_navigation():
        await chosen.press("Enter")
    await expect(visitor.page.locator("#labelled")).to_contain_text(
        re.compile(r"is labelled correct\. The judge said: \d+ \w+")
    )
    await expect(visitor.page.get_by_role("progressbar")).to_have_attribute("value", "1")


async def test_a_screen_reader_hears_the_state_of_the_session(installation: Installation, visit: Visits) -> None:
    """A live region, separate from the visible text, announces the state of the session, also of an attempt that began
    elsewhere.
    """
    await installation.score("heard-1")
    installation.service.hold("heard-1", "analysis")
    visitor = await visit("/sessions/heard-1")
    await expect(visitor.page.locator("#live-state")).to_have_text("Live")
    await installation.service.ask_again("heard-1", "heard-again")
    said = visitor.page.locator("#said")
    await expect(said).to_have_role("status")
    await expect(said).to_have_attribute("aria-live", "polite")
    await expect(said).to_have_text("Judging")
    installation.service.judge.clear()
    row = await installation.service.score_becomes("heard-1", "completed")
    await expect(said).to_contain_text(str(row["total_score"]))
