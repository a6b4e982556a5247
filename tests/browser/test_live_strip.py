"""The strip of rolling signals: what it shows for valid and hostile messages, and when rows disappear."""

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import visiting
from playwright.async_api import expect
from visiting import Visitor, Visits

from infrastructure import wait_until
from insights_messages import START_US, drift, windows

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOW = datetime(2100, 1, 5, 10, 30, tzinfo=UTC)  # the browser's clock
HOSTILE = (
    "<script>alert('strip')</script>",
    '"><img src=x onerror="alert(\'strip\')">',
    "javascript:alert('strip')",
    "__proto__",
    "\u202egnisrever\u202c",
    "x" * 3_000,
    "{{ 7 * 191 }}",
    " ",
)
ROWS = "#strip-rows tr"
# Counts the messages that live.js hands over, and keeps every announcement to screen readers.
LISTEN = """
  window.insights = 0;
  window.heard = [];
  document.addEventListener("insight", () => { window.insights += 1; });
  addEventListener("DOMContentLoaded", () => {
    const said = document.getElementById("strip-said");
    if (said) new MutationObserver(() => window.heard.push(said.textContent)).observe(said, {childList: true});
  });
"""


@dataclass
class PageSocket(visiting.PageSocket):
    """A socket that sends insights."""

    sent: int = 0

    async def send(self, *messages: dict[str, Any]) -> None:
        """Send messages, and wait until the page shows them."""
        for message in messages:
            self.sockets[-1].send(json.dumps(message).replace("Infinity", "1e400"))  # JSON's way to an infinite number
        self.sent += len(messages)

        async def have_come() -> bool:
            return bool(await self.page.evaluate("window.insights") == self.sent)

        await wait_until(have_come, 30, "the messages")
        await self.page.clock.run_for(300)


async def open_page(visit: Visits, path: str = "/", **kind: Any) -> tuple[Visitor, PageSocket]:
    """A visitor whose clock stands still at `NOW` and whose WebSocket the test answers."""
    visitor = await visit("/healthz", **kind)
    socket = PageSocket(visitor.page)
    await socket.install()
    await visitor.page.add_init_script(LISTEN)
    await visitor.page.clock.install(time=NOW - timedelta(minutes=1))
    await visitor.page.clock.pause_at(NOW)
    await visitor.open(path)
    await expect(visitor.page.locator("#live-state")).to_have_text("Live")
    return visitor, socket


def of_chain(chain: str | None, hours_ago: float = 0.0, **figures: Any) -> dict[str, Any]:
    """A message whose windows end in half an hour, or `hours_ago` before that."""
    message = windows(chain, **figures)
    for window in message["windows"].values():
        window["end"] = (NOW + timedelta(hours=0.5 - hours_ago)).isoformat()
    return message


async def texts(visitor: Visitor) -> list[str]:
    """The rows as the visitor reads them."""
    return [" ".join(row.split()) for row in await visitor.page.locator(ROWS).all_inner_texts()]


@pytest.mark.parametrize("path", ["/", "/trends"])
async def test_the_strip_appears_with_the_first_messages(visit: Visits, path: str) -> None:
    """Both pages get messages over their one connection; each row has its band's colour and word."""
    visitor, socket = await open_page(visit, path)
    strip = visitor.page.locator("#strip")
    assert socket.asked[-1][0] == "insights"
    assert len(socket.sockets) == 1
    await expect(strip).to_be_hidden()
    await socket.send(
        of_chain("steady"),
        of_chain(
            "shaky", mean=62.04, scores=1_250, share_under_threshold=0.256, failures={"judge_auth": 2, "refused": 1}
        ),
        of_chain(None, mean=12, cost_usd=None, failures={"refused": 1}),
        of_chain("only-failures", scores=0, scored=0, mean=None, share_under_threshold=None, cost_usd=0.001),
    )
    await expect(strip).to_be_visible()
    assert [text.replace(" until 11:00 UTC", "") for text in await texts(visitor)] == [
        f"{name} {figures} {figures}"
        for name, figures in (
            ("shaky", "62 50-74 1,250 scores · 26 % under 50 · 3 failures (most: judge auth) · $0.50"),
            ("steady", "81.3 75-100 4 scores · 0 % under 50 · $0.50"),
            ("no chain", "12 0-49 4 scores · 0 % under 50 · 1 failure (refused)"),
            ("only-failures", "no total 0 scores · less than $0.01"),
        )
    ]
    assert " ".join((await strip.get_by_role("heading").inner_text()).split()) == "Just now 4 chains"
    looks = await strip.locator(".badge").evaluate_all("all => all.map(one => one.className)")
    assert looks == ["badge fair"] * 2 + ["badge good"] * 2 + ["badge weak"] * 2
    assert await strip.locator("caption").inner_text() != ""
    assert await strip.locator('th[scope="col"], th[scope="row"]').count() == 3 + 4
    await visitor.screenshot(f"strip{path.replace('/', '-')}")


async def test_a_message_changes_only_the_row_of_its_chain(visit: Visits) -> None:
    """A link keeps the focus when its row changes or moves."""
    visitor, socket = await open_page(visit)
    await socket.send(of_chain("a"), of_chain("b"))
    await visitor.page.evaluate(f"document.querySelectorAll('{ROWS}')[0].isTheSame = true")
    await visitor.page.locator(ROWS).nth(1).get_by_role("link").focus()
    await socket.send(of_chain("b", mean=40, scores=5), of_chain("a"))
    assert "40 0-49 5 scores" in (await texts(visitor))[0], "most scores come first"
    await socket.send(of_chain("b", mean=40, scores=3), of_chain("a"))
    assert "40 0-49 3 scores" in (await texts(visitor))[1]
    assert await visitor.page.evaluate(f"document.querySelectorAll('{ROWS}')[0].isTheSame") is True
    assert await visitor.page.evaluate("document.activeElement.textContent") == "b"


async def test_a_name_leads_to_the_sessions_of_its_chain(visit: Visits) -> None:
    """The link filters the list by the chain, whatever characters the name has."""
    visitor, socket = await open_page(visit)
    await socket.send(of_chain("a&status=failed #1"))
    await visitor.follow(visitor.page.locator(ROWS).get_by_role("link"))
    await expect(visitor.page.get_by_role("combobox", name="Chain")).to_have_value("a&status=failed #1")


@pytest.mark.parametrize("path", ["/", "/trends"])
async def test_a_page_of_one_chain_shows_that_chain_alone(visit: Visits, path: str) -> None:
    """A page filtered by a chain shows that chain's row and drift, and no others."""
    visitor, socket = await open_page(visit, f"{path}?chain=%22a%22")
    await socket.send(of_chain("b"), of_chain(None), drift(chain_id="b"))
    await expect(visitor.page.locator("#strip")).to_be_hidden()
    await socket.send(of_chain('"a"'), drift(chain_id='"a"'))
    assert [text.split()[0] for text in await texts(visitor)] == ['"a"']
    assert " ".join((await visitor.page.locator("#strip-name").inner_text()).split()) == "Just now 1 chain"
    await expect(visitor.page.locator("#strip-finding")).to_contain_text('chain "a"')


async def test_hostile_names_stay_text(visit: Visits) -> None:
    """No dialog, no element made of text, no layout pushed apart, and no override of the text direction."""
    visitor, socket = await open_page(visit, viewport={"width": 360, "height": 800})
    finding = drift(chain_id=HOSTILE[1], cause="<script>alert('cause')</script>")
    await socket.send(*(of_chain(name, failures={name: 3}) for name in HOSTILE), finding)
    await expect(visitor.page.locator(ROWS)).to_have_count(len(HOSTILE))
    shown = await visitor.page.locator("#strip").inner_text()
    for name in (*HOSTILE[:4], HOSTILE[6]):
        assert name in shown
    assert "\u202e" not in shown
    assert "Drift: totals changed, −8.2 points" in shown
    await expect(visitor.page.locator("#strip script, #strip img")).to_have_count(0)
    links = await visitor.page.locator(f"{ROWS} a").evaluate_all("all => all.map(one => one.protocol + one.pathname)")
    assert set(links) == {"http:/"}
    wide = await visitor.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 1
    await visitor.screenshot("strip-hostile-360")


MALFORMED: tuple[dict[str, Any], ...] = (
    {"windows": None},
    {"windows": [1, 2]},
    {"windows": {"1h": "x", "24h": 7}},
    {"windows": {"1h": {"end": "never", "mean": "81", "scores": None, "failures": ["x"], "cost_usd": {}}}},
    {"windows": {"24h": {"end": math.inf, "mean": math.inf, "failures": {"x": -1, "y": "z"}}}},
    {"type": "scoring.drift_detected", "interval": 7, "size_points": "x", "began_at": "never", "cause": "toString"},
    {"type": "scoring.drift_detected", "interval": [None], "chain_id": 7, "cause": None, "timestamp_us": "x"},
)


async def test_a_malformed_message_hides_no_valid_one(visit: Visits) -> None:
    """A malformed message does not stop the script: the next valid message is shown."""
    visitor, socket = await open_page(visit)
    for number, message in enumerate(MALFORMED, 2):
        await socket.send(of_chain("odd") | message, of_chain("sound", scores=number))
        assert (await texts(visitor))[0].startswith(f"sound 81.3 75-100 {number} scores"), message
        assert not {"NaN", "undefined", "Infinity"} & set((await visitor.read_text()).split())
        finding = await visitor.page.locator("#strip-finding").text_content()
        assert not finding or finding.startswith("Drift: totals changed"), message


async def test_the_row_of_a_quiet_chain_disappears_after_a_day(visit: Visits) -> None:
    """A window that has ended says when; a row disappears a day after that."""
    visitor, socket = await open_page(visit)
    await socket.send(of_chain("long-quiet", 25), of_chain("nearly", 24.4), of_chain("quiet", 2))
    assert [text.split()[0] for text in await texts(visitor)] == ["nearly", "quiet"]
    assert "until 09:00 UTC" in (await texts(visitor))[1]
    assert "until 2100-01-04 10:36 UTC" in (await texts(visitor))[0]
    await visitor.page.clock.run_for(8 * 60_000)
    assert [text.split()[0] for text in await texts(visitor)] == ["quiet"]
    await visitor.page.clock.fast_forward(24 * 3600_000)  # `run_for` would refresh the list for each minute
    await visitor.page.clock.run_for(2 * 60_000)
    await expect(visitor.page.locator("#strip")).to_be_hidden()


DRIFTS: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "the judge changed, −8.2 points (−10.5 to −5.9), chain chain-a, since 2026-01-05 09:00 UTC."),
    ({"cause": "agents", "chain_id": None, "began_at": None}, "the agents changed, −8.2 points (−10.5 to −5.9)."),
    (
        {"cause": "both", "size_points": 3.04, "interval": [-0.5, 6.5], "is_clear": False, "began_at": None},
        "judge and agents changed, +3 points (−0.5 to +6.5), chain chain-a. This is not certain yet.",
    ),
    ({"size_points": None, "interval": None, "began_at": None}, "the judge changed, chain chain-a."),
)


async def test_the_newest_drift_is_shown_with_its_cause(visit: Visits) -> None:
    """One sentence that links to the page of drift; a late, older finding does not replace it."""
    visitor, socket = await open_page(visit, "/trends")
    for number, (more, words) in enumerate(DRIFTS, START_US):
        await socket.send(drift(number, **more), drift(START_US - 1, cause="judge", size_points=1.0))
        assert await visitor.page.locator("#strip-finding").inner_text() == f"Drift: {words}"
    await expect(visitor.page.locator("#strip .scroll")).to_be_hidden()
    await expect(visitor.page.locator("#strip-drift").get_by_role("link")).to_have_attribute("href", "/drift")


async def test_announcements_are_few(visit: Visits) -> None:
    """Only a changed band and new drift are announced, collected over ten seconds; never the first state."""
    visitor, socket = await open_page(visit)
    await socket.send(of_chain("a"), of_chain("b"), drift())
    await socket.send(of_chain("a", mean=90), of_chain("b", scores=9))
    assert await visitor.page.evaluate("window.heard") == []
    await socket.send(of_chain("a", mean=60))
    heard = ["a is in 50-74 now: 60 in its newest hour."]
    assert await visitor.page.evaluate("window.heard") == heard
    news = drift(int(NOW.timestamp() * 1e6) + 1_000_000, cause="agents", chain_id=None, began_at=None)
    await socket.send(of_chain("a", mean=30))
    await socket.send(of_chain("b", mean=70), news)
    await visitor.page.clock.run_for(8_500)
    assert await visitor.page.evaluate("window.heard") == heard
    await visitor.page.clock.run_for(1_000)
    later = (
        "a is in 0-49 now: 30 in its newest hour. b is in 50-74 now: 70 in its newest hour. "
        "Drift: the agents changed, −8.2 points (−10.5 to −5.9)."
    )
    assert await visitor.page.evaluate("window.heard") == [*heard, later]
