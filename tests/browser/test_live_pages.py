"""A page that follows live events: when it refreshes, what a refresh keeps, and what is announced."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Route, expect
from visiting import Installation, PageSocket, Visitor, Visits

from infrastructure import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SESSION = "followed-1"

# Keeps every state of the connection that a screen reader would announce.
LISTEN = """
  window.heard = [];
  addEventListener("DOMContentLoaded", () => {
    const state = document.getElementById("live-state");
    new MutationObserver(() => {
      if (state.ariaLive === "polite" && state.textContent) window.heard.push(state.textContent);
    }).observe(state, {childList: true});
  });
"""

# Limits of requests are 60 times shorter; Playwright's clock has no power over them.
HURRY = """
  const limit = Object.getOwnPropertyDescriptor(XMLHttpRequest.prototype, "timeout");
  Object.defineProperty(XMLHttpRequest.prototype, "timeout", {set(ms) { limit.set.call(this, ms / 60); }});
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def followed(installation: Installation) -> AsyncIterator[Installation]:
    """A session with a score."""
    await installation.score(SESSION)
    yield installation


async def is_live(visitor: Visitor) -> None:
    await expect(visitor.page.locator("#live-state")).to_have_text("Live")


async def open_page(visit: Visits, path: str, script: str = "") -> tuple[Visitor, PageSocket, list[str]]:
    """A visitor whose WebSocket the test answers, and the addresses that the page has fetched since."""
    visitor = await visit("/healthz")
    socket, fetched = PageSocket(visitor.page), list[str]()
    await socket.install()
    await visitor.page.add_init_script(script)
    await visitor.open(path)
    await is_live(visitor)
    visitor.page.on("request", lambda request: fetched.append(request.url) if request.resource_type == "xhr" else None)
    return visitor, socket, fetched


async def test_a_lost_connection_and_its_return_are_announced(followed: Installation, visit: Visits) -> None:
    """The page is fetched before it subscribes again; that it is live at the start is not announced."""
    visitor, socket, fetched = await open_page(visit, f"/sessions/{SESSION}", LISTEN)
    await expect(visitor.page.locator("#live-state")).to_have_attribute("role", "status")
    assert await visitor.page.evaluate("window.heard") == []
    await visitor.page.locator("main").evaluate("main => { main.dataset.position = '999999'; }")
    await socket.drop()

    async def heard() -> list[str]:
        said: list[str] = await visitor.page.evaluate("window.heard")
        return said if "Live" in said else []

    assert await wait_until(heard, 30, "its return is said") == ["Reconnecting", "Live"]
    assert len(fetched) == 1
    first, again = socket.asked
    assert first == again == (f"session:{SESSION}", first[1])


async def test_a_refresh_keeps_what_the_visitor_entered(followed: Installation, visit: Visits) -> None:
    """A chosen criteria and a half-written reason outlive the refresh that a new score causes."""
    visitor = await visit(f"/sessions/{SESSION}")
    await is_live(visitor)
    await visitor.page.locator("#more").click()
    form = visitor.page.locator("#other-criteria")
    chosen, reason = form.get_by_label("Criteria"), form.get_by_label("Reason")
    history = visitor.page.locator('#region-more a[href^="/scores/"]:not([href*="compare"])')
    before = await history.count()

    await chosen.select_option("investigation-structured")
    await reason.fill("half writ")
    await visitor.page.locator("h1").click()  # takes the focus away from the form
    await followed.service.ask_again(SESSION, "event-beside-1")
    await expect(history).to_have_count(before + 1)
    await expect(chosen).to_have_value("investigation-structured")
    await expect(reason).to_have_value("half writ")
    await expect(form).to_have_attribute("open", "")
    await followed.service.scores_reach(before + 1, f"session_id = '{SESSION}' AND status = 'completed'")


async def test_events_at_once_cause_one_refresh(followed: Installation, visit: Visits) -> None:
    """A refresh brings a new key for every form; that alone replaces no element."""
    visitor, socket, fetched = await open_page(visit, f"/?q={SESSION}")
    await visitor.page.evaluate("document.querySelector('table.list input').isTheSame = true")
    await visitor.page.evaluate("document.title = 'not read again yet'")
    for number in range(5):
        socket.send(type="scoring.started", score_id=f"score-{number}", session_id="another", position=number)
    await expect(visitor.page).not_to_have_title("not read again yet")
    assert len(fetched) == 1
    assert await visitor.page.evaluate("document.querySelector('table.list input').isTheSame") is True


async def test_a_list_follows_the_sessions_that_are_being_scored(followed: Installation, visit: Visits) -> None:
    """From the position of the page that shows them, so that no phase in between is missed."""
    followed.service.hold("follows-1", "analysis")
    visitor, socket, _ = await open_page(visit, "/?q=follows-")
    followed.service.add_session("follows-1")
    await followed.service.announce("follows-1")
    await followed.service.score_becomes("follows-1", "in_progress")
    badge = visitor.page.locator('.badge[data-session="follows-1"]')

    async def is_followed() -> bool:
        socket.send(type="scoring.started", score_id="new", session_id="follows-1")
        return bool(await badge.count()) and socket.asked[-1][0] == "session:follows-1"

    await wait_until(is_followed, 30, "it subscribes")
    assert socket.asked[-1][1] > socket.asked[0][1]
    await expect(badge).to_contain_text("Judging")
    followed.service.judge.clear()
    await followed.service.score_becomes("follows-1", "completed")


@pytest.mark.parametrize("is_answered", [True, False], ids=["refused twice", "never answered"])
async def test_a_refresh_that_fails_is_repeated(followed: Installation, visit: Visits, is_answered: bool) -> None:
    """A busy server loses no event for the page, and a refresh without an answer is given up and repeated."""
    visitor, socket, _ = await open_page(visit, f"/sessions/{SESSION}", HURRY)
    wanted, failed = (2 if is_answered else 1), list[Route]()

    async def fails(route: Route) -> None:
        if route.request.resource_type != "xhr" or len(failed) == wanted:
            await route.continue_()
            return
        failed.append(route)
        if is_answered:
            await route.fulfill(status=503, body="busy")

    await visitor.page.route(f"**/sessions/{SESSION}", fails)
    await visitor.page.evaluate("document.title = 'not read again yet'")
    await visitor.page.clock.install()
    await visitor.page.clock.pause_at("2100-01-01")
    socket.send(type="scoring.started", score_id="another")

    async def is_read() -> bool:
        await visitor.page.clock.run_for(5_000)
        socket.send(type="pong")
        return await visitor.page.title() != "not read again yet"

    await wait_until(is_read, 60, "the page is read after all")
    assert len(failed) == wanted
    visitor.refused.clear()  # the test itself answered with 503
