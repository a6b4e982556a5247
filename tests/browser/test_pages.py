"""The pages in a browser: lists, live scoring, keyboard, no JavaScript, small screens and hostile text."""

import pytest
from playwright.async_api import Page, Route, expect
from visiting import Installation, Visits

from infrastructure import wait_until
from tarsy_scoring_lab.scripted_judge import Fault

pytestmark = pytest.mark.asyncio(loop_scope="module")

ELSEWHERE = "http://elsewhere.example"
# The directives of the Content Security Policy that every page has.
DIRECTIVES = {"script-src", "style-src", "img-src", "connect-src", "form-action"}

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
    await expect(badge).to_have_text("No score requested")
    await visitor.follow(visitor.page.get_by_role("button", name="Score session").first)
    await visitor.page.evaluate(WATCH_BADGE, "watched-1")
    await expect(badge).to_contain_text("Judging")
    facts = visitor.page.locator("aside dl.facts div")
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
    await expect(visitor.page.locator('aside a[href^="/scores/"]:not([href*="compare"])')).to_have_count(2)
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


async def test_a_citation_leads_to_its_entry_in_the_timeline(installation: Installation, visit: Visits) -> None:
    """The entry is in view and marked with the sentence; the form filters, all without JavaScript."""
    reply = Fault(
        kind="reply", match="cited-1", turn="analysis", content="It read the logs (E4).\n\nOutcome: correct\n67"
    )
    installation.service.judge.script(reply)
    await installation.score("cited-1")
    visitor = await visit("/sessions/cited-1", java_script_enabled=False)
    await visitor.follow(visitor.page.locator("#analysis").get_by_role("link", name="E4"))
    entry = visitor.page.locator("#timeline-E4")
    await expect(entry).to_be_in_viewport()
    await expect(entry).to_contain_text("It read the logs (E4).")
    entries = visitor.page.locator("article")
    assert await entries.count() > 1
    await visitor.page.locator("#timeline-show").select_option("cited")
    await visitor.show()
    await expect(entries).to_have_count(1)
    await expect(entry).to_contain_text("cited")
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


# --- hostile text --------------------------------------------------------------------------------------


INJECTED = f"""
<script>window.owned = "inline"</script><script src="{ELSEWHERE}/x.js"></script><img src="{ELSEWHERE}/x.png">
<div id="styled" style="position: fixed"></div><form action="{ELSEWHERE}"><button id="go"></button></form>
"""


async def test_the_policy_refuses_injected_content(visit: Visits) -> None:
    """The Content Security Policy refuses scripts, styles and pictures if escaping should fail."""
    visitor = await visit("/")

    async def inject(route: Route) -> None:
        answer = await route.fetch()
        await route.fulfill(response=answer, body=(await answer.text()).replace("</body>", f"{INJECTED}</body>"))

    await visitor.page.route(visitor.address + "/", inject)
    visitor.complaints.clear()
    await visitor.page.goto(visitor.address + "/")
    ran = await visitor.page.evaluate(
        """async elsewhere => {
          const fetched = await fetch(elsewhere).then(() => "fetched", () => "");
          document.getElementById("go").click();
          await new Promise(done => setTimeout(done, 200));
          try { document.body.insertAdjacentHTML("beforeend", "<p id=added></p>"); } catch (refusal) {}
          const added = document.getElementById("added") === null ? "" : "added";
          return [window.owned ?? "", fetched, added, getComputedStyle(document.getElementById("styled")).position];
        }""",
        ELSEWHERE,
    )
    await visitor.page.unroute(visitor.address + "/")
    assert ran == ["", "", "", "static"]
    assert visitor.page.url == visitor.address + "/"

    def refused() -> set[str]:
        told = [c for c in visitor.complaints if "Content Security Policy" in c]
        return {directive for directive in DIRECTIVES if any(f"{directive} 'self'" in c for c in told)}

    await wait_until(lambda: refused() == DIRECTIVES, 30, "all is refused, and the console says so")
    assert not [c for c in visitor.complaints if c.startswith("dialog")]
    await visitor.open("/")  # the console reports the rest about this page before the next one opens
    visitor.complaints.clear()
