"""
Every page over the demo's example data.

It is accessible in light and dark, and readable on small and very wide screens.
"""

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from example_site import ExampleSite, example_site
from playwright.async_api import Browser, Page
from visiting import Visits

from infrastructure import Kafka, Postgres
from tarsy_scoring.web.pages import registry

pytestmark = pytest.mark.asyncio(loop_scope="module")

IMAGES = Path(__file__).parents[2] / "docs/images"
SMALL = {"width": 390, "height": 844}
WIDE = {"width": 2560, "height": 1440}
LONGEST_LINE = 145  # characters of a paragraph
# Routes that are no pages: files that a page loads or offers.
FILES = re.compile(r"^/static/|\.csv$")
# Further states of pages: a chosen chain, an empty list, a wrong filter, an address that does not exist.
MORE = [
    "/?q=demo-",
    "/?q=no-such-session",
    "/?since=yesterday",
    "/sessions/demo-hostile-logs",
    "/sessions/example-payments-outage",
    "/sessions/example-network-0060",
    "/trends?chain=example-payments",
    "/drift?chain=example-payments",
    "/distribution?since=&until=2020-01-01",
    "/nothing-here",
]


def all_pages() -> list[str]:
    """The addresses of all pages with their parameters in braces, found in the routers of the pages."""
    routes = [route for router in registry.routers() for route in router.routes]
    paths = {route.path for route in routes if "GET" in route.methods}  # type: ignore[attr-defined]
    return [*sorted(path for path in paths if not FILES.search(path)), *MORE]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, kafka: Kafka, _migrated_template: str
) -> AsyncIterator[ExampleSite]:
    async with example_site(tmp_path_factory.mktemp("example"), postgres, kafka, _migrated_template) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def visit(site: ExampleSite, browser: Browser) -> AsyncIterator[Visits]:
    """Makes visitors of the example site."""
    visits = Visits(site.address, browser)
    yield visits
    await visits.end()


def address_of(path: str, site: ExampleSite) -> str:
    """
    The address of a page with values for its parameters.

    Raises:
        AssertionError: `known` of the example site lacks a parameter of a new page.
    """
    lacking = set(re.findall(r"\{(\w+)\}", path)) - site.known.keys()
    assert not lacking, f"give {lacking} of {path} a value in `example_site`"
    return path.format_map(site.known)


async def unfold(page: Page) -> None:
    """Open all folded parts."""
    await page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")


async def serious_faults(page: Page) -> list[dict[str, Any]]:
    """What axe finds that is serious or critical."""
    found = (await Axe().run(page)).response["violations"]
    return [fault for fault in found if fault["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("path", all_pages())
async def test_a_page_is_accessible(site: ExampleSite, visit: Visits, path: str) -> None:
    """axe finds nothing serious or critical, in light and dark, also in parts that are folded at first."""
    visitor = await visit(address_of(path, site), bypass_csp=True)
    await unfold(visitor.page)
    for scheme in ("light", "dark"):
        await visitor.page.emulate_media(color_scheme=scheme)
        faults = [
            f"{scheme}: {fault['id']}: {node['html'][:200]}: {node['failureSummary']}"
            for fault in await serious_faults(visitor.page)
            for node in fault["nodes"]
        ]
        assert not faults, "\n".join(faults)


# Whether the page itself scrolls sideways, and the parts that stand out of the screen.
STANDS_OUT = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width + 1) return [];
  const out = [...document.querySelectorAll("main *")].filter((one) => one.getBoundingClientRect().right > width + 1);
  return ["the page scrolls sideways", ...out.slice(0, 5).map((one) => one.outerHTML.slice(0, 150))];
}"""
# Paragraphs whose lines have more characters than fit well: their width in letters of average size.
LONG_LINES = """limit => [...document.querySelectorAll("main p, main li, main dd")]
  .filter((one) => one.checkVisibility() && one.textContent.length > limit)
  .map((one) => {
    const range = document.createRange();
    range.selectNodeContents(one);
    const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.bottom / 4))).size;
    return [one.textContent.length / lines, one.textContent.trim().slice(0, 80)];
  })
  .filter(([length]) => length > limit)"""


# Words of up to 16 letters that a line break cuts in two.
CUT_WORDS = """() => {
  const cut = [], walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    if (!text.parentElement.checkVisibility() || text.parentElement.closest("pre, code, .unseen, svg")) continue;
    for (const { 0: word, index } of text.data.matchAll(/(?<![\\w-])[A-Za-z]{2,16}(?![\\w-])/g)) {
      range.setStart(text, index);
      range.setEnd(text, index + word.length);
      if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) cut.push(word);
    }
  }
  return cut;
}"""


@pytest.mark.parametrize("path", all_pages())
async def test_a_page_fits_small_and_very_wide_screens(site: ExampleSite, visit: Visits, path: str) -> None:
    """
    At 390 pixels nothing but tables and charts scrolls sideways; at 2560 pixels lines stay short enough to read.

    No column is so narrow that a word is cut.
    """
    small = await visit(address_of(path, site), viewport=SMALL, is_mobile=True)
    await unfold(small.page)
    wide = await visit(address_of(path, site), viewport=WIDE)
    assert await wide.page.evaluate(LONG_LINES, LONGEST_LINE) == []
    for page in (small.page, wide.page):
        assert await page.evaluate(STANDS_OUT) == []
        assert await page.evaluate(CUT_WORDS) == []


async def test_a_planted_fault_is_found(visit: Visits) -> None:
    """The checks of this file see what they look for."""
    visitor = await visit("/nothing-here", viewport=SMALL, bypass_csp=True)
    await visitor.page.evaluate(PLANT)
    assert {one["id"] for one in await serious_faults(visitor.page)} == {"image-alt", "color-contrast"}
    assert (await visitor.page.evaluate(STANDS_OUT))[0] == "the page scrolls sideways"
    assert await visitor.page.evaluate(CUT_WORDS) == ["investigation"]
    await visitor.page.set_viewport_size(WIDE)
    assert len(await visitor.page.evaluate(LONG_LINES, LONGEST_LINE)) == 1
    visitor.complaints.clear()


PLANT = """() => {
  const add = (tag, style, text, wanted = {}) => {
    const one = Object.assign(document.createElement(tag), wanted);
    one.style.cssText = style;
    one.textContent = text;
    document.querySelector("main").append(one);
  };
  add("img", "width: 600px; height: 9px", "", { src: "data:," });
  add("div", "color: #aaa; background: #bbb", "pale");
  add("div", "width: 30px", "investigation");
  add("p", "max-width: none; width: 2000px", "long line ".repeat(60));
}"""


# --- pictures of the documentation ---------------------------------------------------------------------

PICTURES = {
    "sessions": "/?q=demo-",
    "score": "/sessions/demo-oom-checkout",
    "trends": "/trends?chain=example-payments",
    "drift": "/drift?chain=example-kubernetes",
    "missing-tools": "/missing-tools",
    "review": "/review",
    "week": "/week",
}


@pytest.mark.skipif("WRITE_PICTURES" not in os.environ, reason="`make screenshots` takes the pictures")
@pytest.mark.parametrize("name", PICTURES)
async def test_a_picture_is_taken(visit: Visits, name: str) -> None:
    visitor = await visit(PICTURES[name], viewport={"width": 1000, "height": 600}, timezone_id="UTC")
    shown = visitor.page.get_by_label("Totals per day", exact=True) if name == "trends" else visitor.page
    await shown.screenshot(path=IMAGES / f"{name}.png")
