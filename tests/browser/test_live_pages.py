"""A page that follows live events: what a refresh keeps, what is announced, and when it refreshes."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
import visiting
from playwright.async_api import Page, Route, expect
from visiting import Installation, Visitor, Visits

from infrastructure import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SESSION = "followed-1"

# Counts the page's requests for a fresh copy of itself.
COUNT_REFRESHES = """
  window.refreshes = 0;
  const own = window.fetch;
  window.fetch = (...what) => { window.refreshes += 1; return own(...what); };
"""
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


class PageSocket(visiting.PageSocket):
    """A socket that sends events of `SESSION`."""

    def send_event(self, kind: str, **fields: Any) -> None:
        """Send a scoring event of `SESSION`."""
        event = {"type": kind, "session_id": SESSION, "purpose": "production", "position": 1} | fields
        self.sockets[-1].send(json.dumps(event))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def followed(installation: Installation) -> AsyncIterator[Installation]:
    """A session with a score."""
    await installation.score(SESSION)
    yield installation


async def is_live(visitor: Visitor) -> None:
    await expect(visitor.page.locator("#live-state")).to_have_text("Live")


async def open_page(visit: Visits, path: str, script: str = COUNT_REFRESHES) -> tuple[Visitor, PageSocket]:
    """A visitor whose page runs the script first and whose WebSocket the test answers."""
    visitor = await visit("/healthz")
    socket = PageSocket(visitor.page)
    await socket.install()
    await visitor.page.add_init_script(script)
    await visitor.open(path)
    await is_live(visitor)
    return visitor, socket


async def refreshes(visitor: Visitor) -> int:
    found: int = await visitor.page.evaluate("window.refreshes")
    return found


async def test_a_lost_connection_and_its_return_are_announced(followed: Installation, visit: Visits) -> None:
    """That the page is live at the start is not announced."""
    visitor, socket = await open_page(visit, f"/sessions/{SESSION}", LISTEN)
    await expect(visitor.page.locator("#live-state")).to_have_attribute("role", "status")
    assert await visitor.page.evaluate("window.heard") == []
    await socket.drop()

    async def heard() -> list[str]:
        said: list[str] = await visitor.page.evaluate("window.heard")
        return said if "Live" in said else []

    assert await wait_until(heard, 30, "its return is said") == ["Reconnecting", "Live"]
    await is_live(visitor)


async def test_a_refresh_keeps_what_the_visitor_entered(followed: Installation, visit: Visits) -> None:
    """A chosen criteria and a half-written reason outlive the refresh that a new score causes."""
    visitor = await visit(f"/sessions/{SESSION}")
    await is_live(visitor)
    await visitor.page.locator("#more").click()
    form = visitor.page.locator("#other-criteria")
    chosen, reason = form.get_by_label("Criteria"), form.get_by_label("Reason")
    history = visitor.page.locator('aside a[href^="/scores/"]:not([href*="compare"])')
    before = await history.count()

    await chosen.select_option("investigation-outcome")
    await visitor.page.locator("h1").click()  # takes the focus away from the form
    await followed.service.ask_again(SESSION, "event-beside-1")
    await expect(history).to_have_count(before + 1)
    await expect(chosen).to_have_value("investigation-outcome")

    await followed.service.scores_reach(before + 1, f"session_id = '{SESSION}' AND status = 'completed'")
    await chosen.select_option("")
    await reason.fill("half writ")
    await visitor.page.locator("h1").click()
    await followed.service.ask_again(SESSION, "event-beside-2")
    await expect(history).to_have_count(before + 2)
    await expect(reason).to_have_value("half writ")
    await expect(form).to_have_attribute("open", "")
    await followed.service.scores_reach(before + 2, f"session_id = '{SESSION}' AND status = 'completed'")


async def test_a_refresh_leaves_unchanged_elements_in_place(followed: Installation, visit: Visits) -> None:
    """A refresh brings a new key for every form; that alone replaces no element."""
    visitor, socket = await open_page(visit, f"/?q={SESSION}")
    key = 'table.list input[name="key"]'
    await visitor.page.evaluate(f"document.querySelector('{key}').isTheSame = true")
    await visitor.page.evaluate("document.title = 'not read again yet'")
    async with visitor.page.expect_response(lambda answer: answer.request.resource_type == "fetch") as answered:
        socket.send_event("scoring.progress", score_id="another", session_id="another", phase="queued")
    fresh = await (await answered.value).text()
    await wait_until(lambda: visitor.page.evaluate("document.title !== 'not read again yet'"), 30, "it is read again")
    assert await visitor.page.locator(key).get_attribute("value") not in fresh
    assert await visitor.page.evaluate(f"document.querySelector('{key}').isTheSame") is True


BEGINS = {"kind": "scoring.started"}
GOES_ON = {"kind": "scoring.progress", "phase": "analyzing_methodology"}


@pytest.mark.parametrize(
    ("events", "is_news"),
    [
        ([BEGINS], True),
        ([BEGINS, GOES_ON], True),
        ([{"kind": "scoring.progress", "phase": "waiting_retry"}], True),
        ([{"kind": "scoring.completed", "total_score": 7}], True),
        ([GOES_ON], False),
    ],
    ids=["an attempt begins", "it begins and goes on at once", "it is put back", "it ends", "it goes on"],
)
async def test_only_events_that_change_more_than_the_badge_refresh_a_session(
    followed: Installation, visit: Visits, events: list[dict[str, Any]], is_news: bool
) -> None:
    """A phase changes only the badge; an attempt's start and a wait's reason are elsewhere on the page."""
    visitor, socket = await open_page(visit, f"/sessions/{SESSION}")
    await visitor.page.clock.install()
    await visitor.page.clock.pause_at("2100-01-01")
    badge = visitor.page.locator(".total .badge")
    before = await badge.inner_text()
    score_id = await badge.get_attribute("data-score")
    for event in events:
        socket.send_event(**event, score_id=score_id)

    async def has_come() -> bool:
        await visitor.page.clock.run_for(100)
        return await badge.inner_text() != before

    await wait_until(has_come, 30, "the badge shows the event")
    await visitor.page.clock.run_for(2_000)
    assert await refreshes(visitor) == int(is_news)


async def test_refreshes_after_an_outage_are_spread_over_time(followed: Installation, visit: Visits) -> None:
    """After an outage each page waits for a random time before it refreshes, the page of a session too."""
    visitor, socket = await open_page(visit, f"/sessions/{SESSION}", f"{COUNT_REFRESHES} Math.random = () => 0.8;")
    await visitor.page.clock.install()
    await visitor.page.clock.pause_at("2100-01-01")
    await socket.drop()
    await expect(visitor.page.locator("#live-state")).to_have_text("Reconnecting")
    await visitor.page.clock.run_for(500)
    await is_live(visitor)
    await visitor.page.clock.run_for(3_900)
    assert await refreshes(visitor) == 0
    await visitor.page.clock.run_for(200)
    assert await refreshes(visitor) == 1


async def test_a_reconnect_resumes_before_an_unconfirmed_subscription(followed: Installation, visit: Visits) -> None:
    """While one is unconfirmed the position stands still; else a reconnect would skip its catch-up."""
    visitor, socket = await open_page(visit, f"/?q={SESSION}", "Math.random = () => 0;")
    socket.unconfirmed.add(f"session:{SESSION}")
    began_at = int(await visitor.page.locator("main").get_attribute("data-position") or 0) + 10
    badge = visitor.page.locator(f'.badge[data-session="{SESSION}"]')

    socket.send_event("scoring.started", score_id="new", position=began_at)
    await expect(badge).to_have_text("Reading the session")
    await wait_until(lambda: socket.asked[-1] == (f"session:{SESSION}", began_at), 30, "it subscribes")
    socket.send_event("scoring.progress", score_id="new", phase="analyzing_methodology", position=began_at + 10)
    await expect(badge).to_have_text("Judging")
    socket.unconfirmed.clear()
    await socket.drop()
    of_list = await wait_until(lambda: [ask for ask in socket.asked if ask[0] == "sessions"][1:], 30, "it resubscribes")
    assert of_list == [("sessions", began_at)]


@dataclass
class SlowRefresh:
    """
    Holds up the next refresh: the server has answered when `is_read` is set; the page gets it after `may_come`.

    Args:
        changes: Texts in the answer and their replacements.
    """

    changes: dict[str, str] = field(default_factory=dict)
    is_read: asyncio.Event = field(default_factory=asyncio.Event)
    may_come: asyncio.Event = field(default_factory=asyncio.Event)

    async def of(self, page: Page) -> None:
        await page.route(lambda url: "q=" in url, self._answer)
        await page.evaluate("document.title = 'not read again yet'")

    async def comes(self, page: Page) -> None:
        self.may_come.set()
        await expect(page).not_to_have_title("not read again yet")

    async def _answer(self, route: Route) -> None:
        answer = await route.fetch()
        body = await answer.text()
        for old, new in self.changes.items():
            assert old in body
            body = body.replace(old, new)
        self.is_read.set()
        await self.may_come.wait()
        await route.fulfill(response=answer, body=body)


async def position_of(visitor: Visitor) -> int:
    return int(await visitor.page.locator("main").get_attribute("data-position") or 0)


async def test_a_refresh_does_not_undo_an_event_that_came_meanwhile(followed: Installation, visit: Visits) -> None:
    """The answer was made before the event, and no later event need bring the state again."""
    visitor, socket = await open_page(visit, f"/?q={SESSION}", "Math.random = () => 0;")
    badge = visitor.page.locator(f'.badge[data-session="{SESSION}"]')
    refresh = SlowRefresh()
    await refresh.of(visitor.page)
    socket.send_event("scoring.progress", score_id="another", session_id="another", phase="queued")
    await asyncio.wait_for(refresh.is_read.wait(), 30)
    socket.send_event("scoring.started", score_id="new", position=await position_of(visitor) + 10)
    await expect(badge).to_have_text("Reading the session")
    await refresh.comes(visitor.page)
    assert await badge.inner_text() == "Reading the session"


async def test_a_started_session_is_subscribed_from_its_start_event(followed: Installation, visit: Visits) -> None:
    """The page subscribes from that event's position, not from a later event of another session."""
    visitor, socket = await open_page(visit, f"/?q={SESSION}", "Math.random = () => 0;")
    began_at = await position_of(visitor) + 10
    socket.send_event("scoring.started", score_id="new", position=began_at)
    socket.send_event("scoring.started", score_id="another", session_id="another", position=began_at + 20)
    await wait_until(lambda: socket.asked[-1][0] == f"session:{SESSION}", 30, "it subscribes")
    assert socket.asked[-1] == (f"session:{SESSION}", began_at)

    await socket.drop()
    of_list = await wait_until(lambda: [ask for ask in socket.asked if ask[0] == "sessions"][1:], 30, "it resubscribes")
    assert of_list == [("sessions", began_at)], "what it was going to catch up on has not come"


async def test_a_session_in_progress_is_subscribed_from_the_page(followed: Installation, visit: Visits) -> None:
    """A session that the page shows as in progress is subscribed from the position of that page."""
    visitor, socket = await open_page(visit, f"/?q={SESSION}", "Math.random = () => 0;")
    read_at, own = await position_of(visitor), f'data-session="{SESSION}"'
    refresh = SlowRefresh({own: f"{own} data-busy"})
    await refresh.of(visitor.page)
    socket.send_event("scoring.progress", score_id="another", session_id="another", phase="queued")
    await asyncio.wait_for(refresh.is_read.wait(), 30)
    socket.send_event("scoring.started", score_id="another", session_id="another", position=read_at + 20)
    socket.send_event("scoring.windows", chain_id="a-chain", windows={})
    await expect(visitor.page.locator("#strip")).to_contain_text("a-chain")  # so the event before it has arrived, too
    await refresh.comes(visitor.page)
    await wait_until(lambda: socket.asked[-1][0] == f"session:{SESSION}", 30, "it subscribes")
    assert socket.asked[-1] == (f"session:{SESSION}", read_at)


@pytest.mark.parametrize("is_answered", [True, False], ids=["refused twice", "never answered"])
async def test_a_refresh_that_fails_is_repeated(followed: Installation, visit: Visits, is_answered: bool) -> None:
    """A busy server loses no event for the page, and a refresh without an answer is given up and repeated."""
    visitor, socket = await open_page(visit, f"/sessions/{SESSION}")
    wanted, failed = (2 if is_answered else 1), list[Route]()

    async def fails(route: Route) -> None:
        if route.request.resource_type != "fetch" or len(failed) == wanted:
            await route.continue_()
            return
        failed.append(route)
        if is_answered:
            await route.fulfill(status=503, body="busy")

    await visitor.page.route(f"**/sessions/{SESSION}", fails)
    await visitor.page.evaluate("document.querySelector('h1').textContent = 'not read again yet'")
    await visitor.page.clock.install()
    await visitor.page.clock.pause_at("2100-01-01")
    socket.send_event("scoring.started", score_id="another")

    async def has_failed() -> bool:
        await visitor.page.clock.run_for(1_000)
        return bool(failed)

    async def is_read() -> bool:
        await visitor.page.clock.run_for(5_000)
        return await visitor.page.locator("h1").text_content() != "not read again yet"

    await wait_until(has_failed, 30, "the page is asked for")
    await wait_until(is_read, 30, "the page is read after all")
    assert await refreshes(visitor) == wanted + 1
    visitor.refused.clear()  # the test itself answered with 503
