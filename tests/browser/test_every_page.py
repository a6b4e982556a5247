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
from playwright.async_api import Browser, Page, ViewportSize, expect
from visiting import Visits

from infrastructure import Kafka, Postgres
from tarsy_scoring.web.pages import registry

pytestmark = pytest.mark.asyncio(loop_scope="module")

IMAGES = Path(__file__).parents[2] / "docs/images"
SMALL: ViewportSize = {"width": 390, "height": 844}
WIDE: ViewportSize = {"width": 1440, "height": 900}
# Routes that are no pages: files that a page loads or offers.
FILES = re.compile(r"^/static/")
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


# Whether the page itself scrolls sideways, and the parts that stand out of the screen.
STANDS_OUT = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width + 1) return [];
  const out = [...document.querySelectorAll("main *")].filter((one) => one.getBoundingClientRect().right > width + 1);
  return ["the page scrolls sideways", ...out.slice(0, 5).map((one) => one.outerHTML.slice(0, 150))];
}"""


@pytest.mark.parametrize("path", all_pages())
async def test_a_page_is_accessible(site: ExampleSite, visit: Visits, path: str) -> None:
    """
    axe finds nothing serious or critical, in light and dark, on small and wide screens, also in folded parts.

    Nothing but tables and charts scrolls sideways.
    """
    visitor = await visit(address_of(path, site), bypass_csp=True)
    await unfold(visitor.page)
    for size in (SMALL, WIDE):
        await visitor.page.set_viewport_size(size)
        assert await visitor.page.evaluate(STANDS_OUT) == []
        for scheme in ("light", "dark"):
            await visitor.page.emulate_media(color_scheme=scheme)
            faults = [
                f"{scheme}: {fault['id']}: {node['html'][:200]}: {node['failureSummary']}"
                for fault in await serious_faults(visitor.page)
                for node in fault["nodes"]
            ]
            assert not faults, "\n".join(faults)


async def test_a_small_screen_has_one_line_of_navigation_and_the_newest_days(visit: Visits) -> None:
    """The menu floats over the page; Escape and a click elsewhere close it."""
    visitor = await visit("/trends?chain=example-payments", viewport=SMALL)
    menu, height = visitor.page.locator("#menu"), "document.querySelector('header').offsetHeight"
    assert (before := await visitor.page.evaluate(height)) < 60
    newest = visitor.page.locator(".chart .point").last
    assert await newest.evaluate("dot => dot.getBoundingClientRect().right <= innerWidth")
    for close in (visitor.page.locator("body").press("Escape"), visitor.page.locator("h1").click()):
        await menu.get_by_text("More pages").click()
        await expect(menu.get_by_role("link", name="Sessions")).to_be_in_viewport()
        assert await visitor.page.evaluate(height) == before
        await close
        await expect(menu.get_by_role("link", name="Sessions")).to_be_hidden()


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
