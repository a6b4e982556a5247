"""
The installation under test, and visitors who open its pages in a browser.

A test fails if a visitor meets a dialog, an error in the console, a request to another host, or a 5xx answer.
"""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, Locator, Page, WebSocketRoute

from builders import UNPUBLISHED
from infrastructure import wait_until
from processes import PATIENCE_S, Process, Service

ACTION_TIMEOUT_MS = 30_000
CLOSE_TIMEOUT_S = 20
SCREEN = {"width": 1280, "height": 900}


async def close_or_give_up(thing: Browser | BrowserContext) -> None:
    """Close it; give up after `CLOSE_TIMEOUT_S`, because Chromium sometimes never confirms the close."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await thing.close()


@dataclass(frozen=True)
class Installation:
    """An installation and its API's address; tests of a module share it and use sessions of their own."""

    service: Service
    api: Process
    address: str

    async def score(self, session_id: str, **session: Any) -> Any:
        """
        Put a session into the folder and have it scored; returns the row of the completed score.

        All its events are published by then, so a page that is opened later receives none of them live.
        """
        self.service.add_session(session_id, **session)
        known = {k: session[k] for k in ("alert_type", "chain_id", "labels") if k in session}
        await self.service.announce(session_id, **known)
        score = await self.service.score_becomes(session_id, "completed")
        unpublished = f"{UNPUBLISHED} AND e.score_id = $1"

        async def is_published() -> bool:
            return not await self.service.value(unpublished, score["score_id"])

        await wait_until(is_published, PATIENCE_S, f"the score of {session_id} is published")
        return score


@dataclass
class Visitor:
    """
    A user with one page of a browser.

    `complaints` fail the test; `refused` holds the answers of 400 and above, which some tests provoke.
    """

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)

    async def open(self, path: str) -> int:
        """Go to a path; returns the status of the answer."""
        answer = await self.page.goto(self.address + path)
        assert answer is not None
        return answer.status

    async def follow(self, link: Locator) -> None:
        """Click a link, or the button of a form, and wait for the page behind it."""
        async with self.page.expect_navigation():
            await link.click()

    async def show(self) -> None:
        """Submit the filter form above a list."""
        await self.follow(self.page.get_by_role("button", name="Show", exact=True))

    async def read_text(self) -> str:
        """The visible text of the page."""
        return await self.page.inner_text("body")

    async def read_rows(self) -> list[str]:
        """The session ids of the list on the page, from the top."""
        return await self.page.locator("table.list tbody th code").all_inner_texts()

    def watch(self) -> None:
        """Record complaints and refused answers from now on."""
        self.page.set_default_timeout(ACTION_TIMEOUT_MS)
        self.page.on("dialog", self._on_dialog)
        self.page.on("console", lambda m: self._on_console(m.type, m.text))
        self.page.on("pageerror", lambda error: self.complaints.append(f"script error: {error}"))
        self.page.on("request", lambda request: self._on_request(request.url))
        self.page.on("websocket", lambda socket: self._on_request(socket.url))
        self.page.on("response", lambda answer: self._on_response(answer.status, answer.url))

    async def _on_dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def _on_console(self, kind: str, text: str) -> None:
        # `_on_response` records failed answers, with their status.
        if kind == "error" and not text.startswith("Failed to load resource"):
            self.complaints.append(f"console {kind}: {text}")

    def _on_request(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "about") and parts.netloc != urlsplit(self.address).netloc:
            self.complaints.append(f"request to another host: {url}")

    def _on_response(self, status: int, url: str) -> None:
        if status >= 400:
            self.refused.append((status, urlsplit(url).path))


@dataclass
class Visits:
    """The visitors of one test."""

    address: str
    browser: Browser
    visitors: list[Visitor] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)

    async def __call__(self, path: str = "/", **kind: Any) -> Visitor:
        """
        A new visitor, already at `path`.

        Args:
            kind: Options of the browser context, e.g. `java_script_enabled=False`, `color_scheme="dark"`.
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
            await close_or_give_up(context)
        complaints = [complaint for visitor in self.visitors for complaint in visitor.complaints]
        faults = [answer for visitor in self.visitors for answer in visitor.refused if answer[0] >= 500]
        assert not complaints, complaints
        assert not faults, faults


@dataclass
class PageSocket:
    """
    The WebSocket of a page, answered by the test, which confirms the page's subscriptions.

    Args:
        asked: Subscriptions in the order of their arrival: channel and `last_event_id`.
    """

    page: Page
    sockets: list[WebSocketRoute] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)

    async def install(self) -> None:
        """Take over the WebSocket of every page that is opened from now on."""
        await self.page.route_web_socket("**/api/v1/ws", self._answer_page)

    def send(self, **event: Any) -> None:
        self.sockets[-1].send(json.dumps(event))

    def drop(self) -> Any:
        return self.sockets[-1].close(code=4008, reason="too slow: reconnect and catch up")

    def _answer_page(self, socket: WebSocketRoute) -> None:
        def answer(message: str | bytes) -> None:
            asked = json.loads(message)
            if asked["action"] == "subscribe":
                self.asked.append((asked["channel"], asked["last_event_id"]))
                socket.send(json.dumps({"type": "subscription.confirmed", "channel": asked["channel"]}))

        self.sockets.append(socket)
        socket.on_message(answer)
