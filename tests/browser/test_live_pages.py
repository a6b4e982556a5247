"""A page that follows what happens: what is kept of it, what is said of it, and when it is read again."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
import visiting
from playwright.async_api import Page, Route, expect
from visiting import House, Visitor, Visits

from infrastructure import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SESSION = "followed-1"

# Counts readings of the page as they begin.
COUNT_READINGS = """
  window.readings = 0;
  const own = window.fetch;
  window.fetch = (...what) => { window.readings += 1; return own(...what); };
"""
# Keeps every text of the connection's state that is said aloud.
LISTEN = """
  window.heard = [];
  addEventListener("DOMContentLoaded", () => {
    const state = document.getElementById("live-state");
    new MutationObserver(() => {
      if (state.ariaLive === "polite" && state.textContent) window.heard.push(state.textContent);
    }).observe(state, {childList: true});
  });
"""


class Line(visiting.Line):
    """A line that tells of `SESSION`."""

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a scoring event of `SESSION`."""
        event = {"type": kind, "session_id": SESSION, "purpose": "production", "position": 1} | fields
        self.sockets[-1].send(json.dumps(event))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def followed(house: House) -> AsyncIterator[House]:
    """A session with a score."""
    await house.score(SESSION)
    yield house


async def is_live(visitor: Visitor) -> None:
    await expect(visitor.page.locator("#live-state")).to_have_text("Live")


async def on_a_line(visit: Visits, path: str, script: str = COUNT_READINGS) -> tuple[Visitor, Line]:
    """A visitor whose page runs the script first and has its connection in our hands."""
    visitor = await visit("/healthz")
    line = Line(visitor.page)
    await line.lay()
    await visitor.page.add_init_script(script)
    await visitor.open(path)
    await is_live(visitor)
    return visitor, line


async def readings(visitor: Visitor) -> int:
    found: int = await visitor.page.evaluate("window.readings")
    return found


async def test_a_lost_connection_is_said_aloud_and_so_is_its_return(followed: House, visit: Visits) -> None:
    """That a page is live from the beginning is no news."""
    visitor, line = await on_a_line(visit, f"/sessions/{SESSION}", LISTEN)
    await expect(visitor.page.locator("#live-state")).to_have_attribute("role", "status")
    assert await visitor.page.evaluate("window.heard") == []
    await line.cut()

    async def heard() -> list[str]:
        said: list[str] = await visitor.page.evaluate("window.heard")
        return said if "Live" in said else []

    assert await wait_until(heard, 30, "its return is said") == ["Reconnecting", "Live"]
    await is_live(visitor)


async def test_what_somebody_chooses_stays_while_the_page_is_read_again(followed: House, visit: Visits) -> None:
    """Criteria that are chosen, and a reason that is half written, outlive a score that comes meanwhile."""
    visitor = await visit(f"/sessions/{SESSION}")
    await is_live(visitor)
    await visitor.page.locator("#more").click()
    form = visitor.page.locator("#other-criteria")
    chosen, reason = form.get_by_label("Criteria"), form.get_by_label("Reason")
    history = visitor.page.locator('aside a[href^="/scores/"]')
    before = await history.count()

    await chosen.select_option("investigation-outcome")
    await visitor.page.locator("h1").click()  # nothing there has the focus now
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


async def test_what_has_not_changed_is_not_replaced(followed: House, visit: Visits) -> None:
    """A reading gives every form a new key, which is no reason to pull the page from under a reader's hand."""
    visitor, line = await on_a_line(visit, f"/?q={SESSION}")
    key = 'table.list input[name="key"]'
    await visitor.page.evaluate(f"document.querySelector('{key}').isTheSame = true")
    await visitor.page.evaluate("document.title = 'not read again yet'")
    async with visitor.page.expect_response(lambda answer: answer.request.resource_type == "fetch") as answered:
        line.tell("scoring.progress", score_id="another", session_id="another", phase="queued")
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
async def test_a_session_is_read_again_when_there_is_more_to_tell(
    followed: House, visit: Visits, events: list[dict[str, Any]], is_news: bool
) -> None:
    """A phase is told by the badge alone; when an attempt began and what it waits for stand elsewhere on the page."""
    visitor, line = await on_a_line(visit, f"/sessions/{SESSION}")
    await visitor.page.clock.install()
    await visitor.page.clock.pause_at("2100-01-01")
    badge = visitor.page.locator(".total .badge")
    before = await badge.inner_text()
    score_id = await badge.get_attribute("data-score")
    for event in events:
        line.tell(**event, score_id=score_id)

    async def has_come() -> bool:
        await visitor.page.clock.run_for(100)
        return await badge.inner_text() != before

    await wait_until(has_come, 30, "the badge shows the event")
    await visitor.page.clock.run_for(2_000)
    assert await readings(visitor) == int(is_news)


async def test_pages_that_come_back_together_are_not_read_again_together(followed: House, visit: Visits) -> None:
    """After an outage each waits for a while of its own, the page of a session too."""
    visitor, line = await on_a_line(visit, f"/sessions/{SESSION}", f"{COUNT_READINGS} Math.random = () => 0.8;")
    await visitor.page.clock.install()
    await visitor.page.clock.pause_at("2100-01-01")
    await line.cut()
    await expect(visitor.page.locator("#live-state")).to_have_text("Reconnecting")
    await visitor.page.clock.run_for(500)
    await is_live(visitor)
    await visitor.page.clock.run_for(3_900)
    assert await readings(visitor) == 0
    await visitor.page.clock.run_for(200)
    assert await readings(visitor) == 1


async def test_a_place_is_kept_while_all_that_was_asked_for_is_confirmed(followed: House, visit: Visits) -> None:
    """What another channel tells meanwhile must not hide what the new one is about to catch up on."""
    visitor, line = await on_a_line(visit, f"/?q={SESSION}", "Math.random = () => 0;")
    line.unconfirmed.add(f"session:{SESSION}")
    began_at = int(await visitor.page.locator("main").get_attribute("data-position") or 0) + 10
    badge = visitor.page.locator(f'.badge[data-session="{SESSION}"]')

    line.tell("scoring.started", score_id="new", position=began_at)
    await expect(badge).to_have_text("Reading the session")
    await wait_until(lambda: line.asked[-1] == (f"session:{SESSION}", began_at), 30, "its phases are asked for")
    line.tell("scoring.progress", score_id="new", phase="analyzing_methodology", position=began_at + 10)
    await expect(badge).to_have_text("Judging")
    line.unconfirmed.clear()
    await line.cut()
    of_list = await wait_until(lambda: [ask for ask in line.asked if ask[0] == "sessions"][1:], 30, "it is asked again")
    assert of_list == [("sessions", began_at)]


@dataclass
class SlowReading:
    """
    The next reading of a page: what the server says stands when `is_read` is set, and comes when `may_come` is.

    Args:
        changes: Texts in the answer, and what they become.
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


async def test_what_comes_while_the_page_is_read_again_is_not_hidden_by_it(followed: House, visit: Visits) -> None:
    """The page that was read before an event does not know it, and no later event need tell it again."""
    visitor, line = await on_a_line(visit, f"/?q={SESSION}", "Math.random = () => 0;")
    badge = visitor.page.locator(f'.badge[data-session="{SESSION}"]')
    reading = SlowReading()
    await reading.of(visitor.page)
    line.tell("scoring.progress", score_id="another", session_id="another", phase="queued")
    await asyncio.wait_for(reading.is_read.wait(), 30)
    line.tell("scoring.started", score_id="new", position=await position_of(visitor) + 10)
    await expect(badge).to_have_text("Reading the session")
    await reading.comes(visitor.page)
    assert await badge.inner_text() == "Reading the session"


async def test_phases_are_asked_for_from_the_event_that_shows_them(followed: House, visit: Visits) -> None:
    """Not from what another session has told meanwhile: a phase in between would never be shown."""
    visitor, line = await on_a_line(visit, f"/?q={SESSION}", "Math.random = () => 0;")
    began_at = await position_of(visitor) + 10
    line.tell("scoring.started", score_id="new", position=began_at)
    line.tell("scoring.started", score_id="another", session_id="another", position=began_at + 20)
    await wait_until(lambda: line.asked[-1][0] == f"session:{SESSION}", 30, "its phases are asked for")
    assert line.asked[-1] == (f"session:{SESSION}", began_at)

    await line.cut()
    of_list = await wait_until(lambda: [ask for ask in line.asked if ask[0] == "sessions"][1:], 30, "it is asked again")
    assert of_list == [("sessions", began_at)], "what it was going to catch up on has not come"


async def test_phases_are_asked_for_from_where_the_page_was_read(followed: House, visit: Visits) -> None:
    """A session that a page shows as under way is told from there on, whatever has come before the page did."""
    visitor, line = await on_a_line(visit, f"/?q={SESSION}", "Math.random = () => 0;")
    read_at, own = await position_of(visitor), f'data-session="{SESSION}"'
    reading = SlowReading({own: f"{own} data-busy"})
    await reading.of(visitor.page)
    line.tell("scoring.progress", score_id="another", session_id="another", phase="queued")
    await asyncio.wait_for(reading.is_read.wait(), 30)
    line.tell("scoring.started", score_id="another", session_id="another", position=read_at + 20)
    line.tell("scoring.windows", chain_id="a-chain", windows={})
    await expect(visitor.page.locator("#strip")).to_contain_text("a-chain")  # so the one before has come, too
    await reading.comes(visitor.page)
    await wait_until(lambda: line.asked[-1][0] == f"session:{SESSION}", 30, "its phases are asked for")
    assert line.asked[-1] == (f"session:{SESSION}", read_at)


@pytest.mark.parametrize("is_answered", [True, False], ids=["refused twice", "never answered"])
async def test_a_reading_that_fails_is_tried_again(followed: House, visit: Visits, is_answered: bool) -> None:
    """What came is not forgotten because the server was busy, and a reading that is never answered is given up."""
    visitor, line = await on_a_line(visit, f"/sessions/{SESSION}")
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
    line.tell("scoring.started", score_id="another")

    async def has_failed() -> bool:
        await visitor.page.clock.run_for(1_000)
        return bool(failed)

    async def is_read() -> bool:
        await visitor.page.clock.run_for(5_000)
        return await visitor.page.locator("h1").text_content() != "not read again yet"

    await wait_until(has_failed, 30, "the page is asked for")
    await wait_until(is_read, 30, "the page is read after all")
    assert await readings(visitor) == wanted + 1
    visitor.refused.clear()  # they were ours
