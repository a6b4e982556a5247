"""
Somebody with a browser, and the installation that they visit.

Whatever a test does, no visitor may meet a dialog, an error in the console, a request to another host, or an answer
that tells of a fault of ours.
"""

import asyncio
import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, Locator, Page, WebSocketRoute

from infrastructure import wait_until
from processes import PATIENCE_S, Process, Service

SCREENSHOTS = os.environ.get("BROWSER_SCREENSHOTS")
"""A folder where the pages that tests look at are left as pictures; none are made without it."""

ACTION_TIMEOUT_MS = 30_000
CLOSE_TIMEOUT_S = 20
SCREEN = {"width": 1280, "height": 900}


async def closed(thing: Browser | BrowserContext) -> None:
    """Close it; Chromium now and then never says that it did, which is no matter of the pages."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await thing.close()


@dataclass(frozen=True)
class House:
    """One installation with its address; tests of a module share it and use sessions of their own."""

    service: Service
    api: Process
    address: str

    async def score(self, session_id: str, **session: Any) -> Any:
        """
        Put a session into the folder and have it scored; gives the completed score's row.

        All of it has been told by then: no page that is opened afterwards hears of it as news.
        """
        self.service.add_session(session_id, **session)
        known = {k: session[k] for k in ("alert_type", "chain_id", "labels") if k in session}
        await self.service.announce(session_id, **known)
        score = await self.service.score_becomes(session_id, "completed")
        untold = "SELECT count(*) FROM scoring_events WHERE score_id = $1 AND published_at IS NULL"

        async def is_told() -> bool:
            return not await self.service.value(untold, score["score_id"])

        await wait_until(is_told, PATIENCE_S, f"the score of {session_id} is told")
        return score


@dataclass
class Visitor:
    """
    Somebody with a browser on the pages.

    `complaints` is what no visit may meet; `refused` are answers of 400 and above, which some tests ask for.
    """

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)

    async def open(self, path: str) -> int:
        """Go to a path; gives the status of the answer."""
        answer = await self.page.goto(self.address + path)
        assert answer is not None
        return answer.status

    async def follow(self, link: Locator) -> None:
        """Click a link, or the button of a form, and wait for the page behind it."""
        async with self.page.expect_navigation():
            await link.click()

    async def show(self) -> None:
        """Send the form above a list."""
        await self.follow(self.page.get_by_role("button", name="Show", exact=True))

    async def reads(self) -> str:
        """The text that stands on the page."""
        return await self.page.inner_text("body")

    async def read_rows(self) -> list[str]:
        """The session ids of the list on the page, from the top."""
        return await self.page.locator("table.list tbody th code").all_inner_texts()

    async def picture(self, name: str) -> None:
        """Leave a picture of the whole page, where somebody asked for pictures."""
        if SCREENSHOTS:
            await self.page.screenshot(path=str(Path(SCREENSHOTS) / f"{name}.png"), full_page=True)

    def watch(self) -> None:
        """Note from now on what must not happen."""
        self.page.set_default_timeout(ACTION_TIMEOUT_MS)
        self.page.on("dialog", self._met_dialog)
        self.page.on("console", lambda m: self._heard(m.type, m.text))
        self.page.on("pageerror", lambda error: self.complaints.append(f"script error: {error}"))
        self.page.on("request", lambda request: self._asked_for(request.url))
        self.page.on("websocket", lambda socket: self._asked_for(socket.url))
        self.page.on("response", lambda answer: self._was_answered(answer.status, answer.url))

    async def _met_dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def _heard(self, kind: str, text: str) -> None:
        # What was answered is noted by itself, with its status.
        if kind == "error" and not text.startswith("Failed to load resource"):
            self.complaints.append(f"console {kind}: {text}")

    def _asked_for(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "about") and parts.netloc != urlsplit(self.address).netloc:
            self.complaints.append(f"request to another host: {url}")

    def _was_answered(self, status: int, url: str) -> None:
        if status >= 400:
            self.refused.append((status, urlsplit(url).path))


@dataclass
class Visits:
    """Visitors of one test."""

    address: str
    browser: Browser
    visitors: list[Visitor] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)

    async def __call__(self, path: str = "/", **kind: Any) -> Visitor:
        """
        A new visitor, already at `path`.

        Args:
            kind: What sets the browser apart, e.g. `java_script_enabled=False`, `color_scheme="dark"`.
        """
        context = await self.browser.new_context(**({"viewport": SCREEN, "timezone_id": "Europe/Vienna"} | kind))
        self.contexts.append(context)
        visitor = Visitor(await context.new_page(), self.address)
        visitor.watch()
        self.visitors.append(visitor)
        await visitor.open(path)
        return visitor

    async def end(self) -> None:
        for context in self.contexts:
            await closed(context)
        complaints = [complaint for visitor in self.visitors for complaint in visitor.complaints]
        faults = [answer for visitor in self.visitors for answer in visitor.refused if answer[0] >= 500]
        assert not complaints, complaints
        assert not faults, faults


@dataclass
class Line:
    """
    The WebSocket of a page, in the hands of a test, which confirms what the page subscribes to.

    Args:
        unconfirmed: Channels that are not confirmed.
        asked: Subscriptions in the order in which they came: channel and `last_event_id`.
    """

    page: Page
    sockets: list[WebSocketRoute] = field(default_factory=list)
    unconfirmed: set[str] = field(default_factory=set)
    asked: list[tuple[str, int]] = field(default_factory=list)

    async def lay(self) -> None:
        """For every page that is opened from now on."""
        await self.page.route_web_socket("**/api/v1/ws", self._carry)

    def cut(self) -> Any:
        return self.sockets[-1].close(code=4008, reason="too slow: reconnect and catch up")

    def _carry(self, socket: WebSocketRoute) -> None:
        def answer(message: str | bytes) -> None:
            asked = json.loads(message)
            if asked["action"] == "subscribe":
                self.asked.append((asked["channel"], asked.get("last_event_id", 0)))
                if asked["channel"] not in self.unconfirmed:
                    socket.send(json.dumps({"type": "subscription.confirmed", "channel": asked["channel"]}))

        self.sockets.append(socket)
        socket.on_message(answer)
