"""The pages as somebody uses them: lists, scoring while one watches, failures, keyboard, light and dark."""

from typing import Any

import pytest
from playwright.async_api import Page, expect
from visiting import House, Visits

from infrastructure import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

NARROW = {"width": 375, "height": 740}

# Every text that a badge of a session has shown, kept on the page itself: a reload loses it.
WATCH_BADGE = """id => {
  const read = () => document.querySelector(`.badge[data-session="${id}"]`)?.textContent.trim().replace(/\\s+/g, " ");
  window.shown = [read()];
  new MutationObserver(() => {
    const now = read();
    if (now && now !== window.shown.at(-1)) window.shown.push(now);
  }).observe(document.getElementById("main"), {subtree: true, childList: true, characterData: true});
}"""

# Every text that the state of the connection has shown from now on.
WATCH_STATE = """() => {
  const state = document.getElementById("live-state");
  window.shown = [];
  new MutationObserver(() => window.shown.push(state.textContent)).observe(state, {childList: true});
}"""

# The lowest contrast of text on what lies behind it (WCAG 2.2, 1.4.3), with the element that has it.
LOWEST_CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgba(getComputedStyle(e).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  let worst = [100, "nothing"];
  for (const element of document.querySelectorAll("body *")) {
    const has = [...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!has || !element.checkVisibility({visibilityProperty: true})) continue;
    if (element.closest("title, desc, option, .unseen")) continue;
    const style = getComputedStyle(element);
    const ink = rgba(element instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(element))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < worst[0]) worst = [contrast, `${element.outerHTML.slice(0, 200)} ${contrast}`];
  }
  return worst;
}"""


# How many lines the tallest of some short texts takes up.
TALLEST = """all => Math.max(0, ...all.map(e => {
  const [box, line] = [e.getBoundingClientRect(), parseFloat(getComputedStyle(e).lineHeight)];
  return box.height / line;
}))"""


async def shown_texts(page: Page) -> list[str]:
    texts: list[str] = await page.evaluate("window.shown")
    return texts


async def is_too_wide(page: Page) -> bool:
    """Whether the page itself scrolls sideways."""
    found: bool = await page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth + 1")
    return found


# --- the list ------------------------------------------------------------------------------------------


async def test_the_list_is_searched_filtered_and_sorted(house: House, visit: Visits) -> None:
    """What the form asks for is what the list shows, and the form keeps it."""
    totals = {}
    for n, chain in enumerate(["kubernetes", "kubernetes", "databases"]):
        name = f"list-{n}"
        row = await house.score(name, chain_id=chain, alert_type=f"Alert{n}", labels={"guidance": f"v{n}"})
        totals[name] = row["total_score"]
    visitor = await visit("/?q=list-")
    assert await visitor.read_rows() == ["list-2", "list-1", "list-0"]
    for name, total in totals.items():
        await expect(visitor.page.locator(f'.badge[data-session="{name}"]')).to_contain_text(str(total))
    await visitor.picture("list")

    await visitor.page.get_by_label("Chain").fill("kubernetes")
    await visitor.show()
    assert await visitor.read_rows() == ["list-1", "list-0"]
    await expect(visitor.page.get_by_label("Chain")).to_have_value("kubernetes")

    await visitor.page.get_by_label("Chain").fill("")
    await visitor.page.get_by_label("Order").select_option("worst first")
    await visitor.show()
    assert await visitor.read_rows() == sorted(totals, key=lambda name: (totals[name], name))

    best = max(totals.values())
    await visitor.page.get_by_label("Score from", exact=True).fill(str(best))
    await visitor.show()
    assert set(await visitor.read_rows()) == {name for name, total in totals.items() if total == best}

    await visitor.open("/?q=list-&label=guidance%3Dv1")
    assert await visitor.read_rows() == ["list-1"]
    assert not await visitor.page.get_by_label("Label").is_hidden(), "what is asked for is not folded up"
    await visitor.open("/?q=list-&since=2000-01-01&until=2000-01-02")
    await expect(visitor.page.locator("main")).to_contain_text("No session matches")
    await visitor.open("/?q=list-")
    await expect(visitor.page.get_by_label("Outcome")).to_be_hidden()
    await visitor.page.get_by_text("More filters").click()
    await visitor.page.get_by_label("Ended from").fill("2000-01-01")
    await visitor.show()
    assert len(await visitor.read_rows()) == 3
    await expect(visitor.page.get_by_label("Ended from")).to_have_value("2000-01-01")
    await visitor.open("/?q=list-&status=failed")
    await expect(visitor.page.locator("main")).to_contain_text("No session matches")
    assert await visitor.open("/?min=much") == 422
    await expect(visitor.page.get_by_role("alert")).to_contain_text("Input should be a valid integer")


async def test_a_new_session_appears_while_one_looks(house: House, visit: Visits) -> None:
    """Without a reload: the list reads itself anew when an event tells of a session that is not in it."""
    visitor = await visit("/?q=arrives-")
    await expect(visitor.page.locator("#live-state")).to_have_text("Live")
    await visitor.page.evaluate("window.shown = 1")
    row = await house.score("arrives-1")
    badge = visitor.page.locator('.badge[data-session="arrives-1"]')
    await expect(badge).to_contain_text(str(row["total_score"]))
    assert await visitor.page.evaluate("window.shown") == 1, "the page was not loaded anew"


async def test_a_flag_is_explained_to_everybody(house: House, visit: Visits) -> None:
    """Not to those alone who can hold a pointer still: its word is a link to what it means, below the list."""
    await house.score("flagged-1")
    flags = "UPDATE session_scores SET flags = '[\"self_judged\", \"a_new_flag\"]' WHERE session_id = 'flagged-1'"
    await house.service.rows(flags)
    visitor = await visit("/?q=flagged-1")
    await visitor.page.get_by_role("link", name="self judged").focus()
    await visitor.page.keyboard.press("Enter")
    assert visitor.page.url.endswith("#means-self_judged")
    meaning = visitor.page.locator("#means-self_judged")
    await expect(meaning).to_be_in_viewport()
    await expect(meaning).to_contain_text("The judge is the same model as one of the judged agents.")
    await expect(visitor.page.locator("table.list")).to_contain_text("a new flag")
    assert await visitor.page.locator("main [title]:not(code)").count() == 0, "nothing stands in a hint alone"
    await visitor.follow(visitor.page.get_by_role("link", name="Show all sessions with this flag"))
    assert await visitor.read_rows() == ["flagged-1"]


# --- scoring while one watches -------------------------------------------------------------------------


async def test_from_click_to_badge_without_reload(house: House, visit: Visits) -> None:
    """A click requests a score; the page shows its phases, then its total and analysis."""
    house.service.add_session("watched-1")
    house.service.hold("watched-1", "analysis")
    visitor = await visit("/sessions/watched-1")
    badge = visitor.page.locator('.badge[data-session="watched-1"]')
    await expect(badge).to_have_text("Not scored")
    await visitor.picture("not-scored")
    await visitor.follow(visitor.page.get_by_role("button", name="Score session").first)
    await visitor.page.evaluate(WATCH_BADGE, "watched-1")
    await expect(badge).to_contain_text("Judging")
    facts = visitor.page.locator("aside dl.facts div")
    await expect(facts.filter(has_text="Attempt").locator("dd")).to_have_text("1")
    await expect(facts.filter(has_text="Started").locator("time")).to_be_visible()
    assert await house.service.count("session_id = 'watched-1' AND status = 'in_progress'") == 1
    await visitor.picture("scoring")
    house.service.judge.clear()
    house.service.hold("watched-1", "missing_tools")
    await expect(badge).to_contain_text("Looking for missing tools")
    house.service.judge.clear()
    row = await house.service.score_becomes("watched-1", "completed")
    await expect(badge).to_contain_text(str(row["total_score"]))
    await expect(visitor.page.locator("#analysis")).to_contain_text("scripted stand-in")
    phases = await shown_texts(visitor.page)
    assert "Looking for missing tools" in phases, phases
    assert phases[-1].startswith(str(row["total_score"]))
    assert row["score_triggered_by"] == "api-client"


async def test_a_session_that_runs_becomes_one_with_a_score(house: House, visit: Visits) -> None:
    """While somebody looks: first that it has not ended, then its score, as if the page had been read anew."""
    house.service.add_session("ends-soon-1", status="in_progress", completed_at=None)
    visitor = await visit("/sessions/ends-soon-1")
    await expect(visitor.page.locator("main")).to_contain_text("This session has not ended yet")
    await expect(visitor.page.locator("#live-state")).to_have_text("Live")
    await visitor.picture("not-ended")
    row = await house.score("ends-soon-1")
    await expect(visitor.page.locator(".total .badge")).to_contain_text(str(row["total_score"]))
    await expect(visitor.page.locator("#region-score")).to_have_class("columns")


async def test_phases_show_in_the_list_too(house: House, visit: Visits) -> None:
    """The badge of a row follows its session from the click on."""
    await house.score("row-1")
    house.service.hold("row-1", "analysis")
    watcher = await visit("/?q=row-1")
    await expect(watcher.page.locator("#live-state")).to_have_text("Live")
    await watcher.page.evaluate(WATCH_BADGE, "row-1")
    asker = await visit("/?q=row-1")
    await asker.follow(asker.page.get_by_role("button", name="Re-score row-1"))
    await expect(watcher.page.locator('.badge[data-session="row-1"]')).to_have_text("Judging")
    house.service.judge.clear()

    async def ended() -> list[str]:
        texts = await shown_texts(watcher.page)
        return texts if len(texts) > 1 and texts[-1][0].isdigit() else []

    await wait_until(ended, 30, "the row shows its new number")
    assert await house.service.count("session_id = 'row-1' AND status = 'completed'") == 2


async def test_a_running_score_can_be_cancelled(house: House, visit: Visits) -> None:
    """And says so; a second click somewhere else on the same score does no harm."""
    house.service.hold("stopped-1")
    house.service.add_session("stopped-1")
    await house.service.announce("stopped-1")
    await house.service.score_becomes("stopped-1", "in_progress")
    visitor = await visit("/sessions/stopped-1")
    late = await visit("/sessions/stopped-1", java_script_enabled=False)
    await visitor.follow(visitor.page.get_by_role("button", name="Cancel scoring"))
    await house.service.score_becomes("stopped-1", "cancelled")
    house.service.judge.clear()
    await expect(visitor.page.locator(".total .badge")).to_have_text("Cancelled")
    await late.follow(late.page.get_by_role("button", name="Cancel scoring"))
    await expect(late.page.locator(".total .badge")).to_have_text("Cancelled")


@pytest.mark.parametrize(
    ("status", "word", "kind", "reason"),
    [
        ("timed_out", "Timed out", "deadline_passed", "All attempts together took too long."),
        ("cancelled", "Cancelled", "cancelled", "A user cancelled the score."),
    ],
    ids=["timed out", "cancelled"],
)
async def test_what_ended_without_a_number_can_be_asked_for_again(
    house: House, visit: Visits, status: str, word: str, kind: str, reason: str
) -> None:
    """Its badge says how it ended, in the list and on its page, and a click there makes it a number."""
    session_id = f"ended-{kind}"
    await house.score(session_id)
    ended = "UPDATE session_scores SET status = $2, error_kind = $3, total_score = NULL WHERE session_id = $1"
    await house.service.rows(ended, session_id, status, kind)
    visitor = await visit(f"/?q={session_id}&status={status}")
    badge = visitor.page.locator(f'.badge[data-session="{session_id}"]')
    await expect(badge).to_have_text(word)
    await expect(visitor.page.locator("table.list")).to_contain_text(reason)
    await visitor.follow(visitor.page.locator("table.list th a"))
    await expect(visitor.page.locator(".total .badge")).to_have_text(word)
    await expect(visitor.page.locator(".total + .note, .total ~ .note").first).to_contain_text(reason)
    await visitor.open(f"/?q={session_id}")
    await visitor.follow(visitor.page.get_by_role("button", name=f"Re-score {session_id}"))
    row = await house.service.score_becomes(session_id, "completed")
    await expect(visitor.page.locator(".total .badge")).to_contain_text(str(row["total_score"]))


# --- without JavaScript, without a mouse, in the dark, on a small screen -------------------------------


async def test_without_javascript_everything_but_live_works(house: House, visit: Visits) -> None:
    """Lists, filters, links and forms are HTML; a page that is loaded again shows what has become of a score."""
    await house.score("plain-1")
    visitor = await visit("/", java_script_enabled=False)
    await visitor.page.get_by_label("Session id or alert type begins with").fill("plain-")
    await visitor.show()
    assert await visitor.read_rows() == ["plain-1"]
    await expect(visitor.page.locator("#live-state")).to_be_hidden()
    await visitor.follow(visitor.page.locator("table.list th a"))
    await visitor.follow(visitor.page.get_by_role("button", name="Re-score").first)
    await house.service.scores_reach(2, "session_id = 'plain-1' AND status = 'completed'")
    await visitor.page.reload()
    await expect(visitor.page.locator('aside a[href^="/scores/"]')).to_have_count(2)
    turns = visitor.page.locator("#turns")
    await turns.locator("summary").first.click()
    await expect(turns).to_contain_text("Analysis")


async def test_the_keyboard_is_enough(house: House, visit: Visits) -> None:
    """Skip link first, focus always visible, search by Enter, score by Enter."""
    await house.score("keys-1")
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
    await house.service.scores_reach(2, "session_id = 'keys-1' AND status = 'completed'")


async def test_what_happens_is_told_to_a_screen_reader(house: House, visit: Visits) -> None:
    """A live region, apart from what is read by sight, says the state of the session that one looks at."""
    await house.score("heard-1")
    house.service.hold("heard-1", "analysis")
    visitor = await visit("/sessions/heard-1")
    await visitor.follow(visitor.page.locator("#ask"))
    said = visitor.page.locator("#said")
    await expect(said).to_have_role("status")
    await expect(said).to_have_attribute("aria-live", "polite")
    await expect(said).to_have_text("Judging")
    house.service.judge.clear()
    row = await house.service.score_becomes("heard-1", "completed")
    await expect(said).to_contain_text(str(row["total_score"]))


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everything_can_be_read_in_light_and_dark(house: House, visit: Visits, scheme: str) -> None:
    """Text on what lies behind it has a contrast of 4.5 at least, badges included, in both schemes."""
    for session_id in ("shade-1", "shade-2", "shade-3"):
        await house.score(session_id)
    visitor = await visit("/", color_scheme=scheme)
    grounds = []
    for path in ("/", "/sessions/shade-1", "/trends", "/distribution", "/missing-tools", "/failure-tags", "/?min=x"):
        await visitor.open(path)
        contrast, where = await visitor.page.evaluate(LOWEST_CONTRAST)
        assert contrast >= 4.5, f"{path}: {where}"
        grounds.append(await visitor.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        await visitor.picture(f"{scheme}{path.replace('/', '-').replace('?', '')}")
    red = int(grounds[0].split("(")[1].split(",")[0])
    assert red < 64 if scheme == "dark" else red > 192


async def test_a_small_screen_scrolls_down_only(house: House, visit: Visits) -> None:
    """Wide tables and pictures scroll within themselves."""
    await house.score("small-1")
    visitor = await visit("/", viewport=NARROW, is_mobile=True)
    for path in ("/", "/sessions/small-1", "/trends", "/distribution", "/missing-tools", "/failure-tags"):
        await visitor.open(path)
        assert not await is_too_wide(visitor.page), path
        tall = await visitor.page.locator("caption:visible, th:visible, .chip:visible").evaluate_all(TALLEST)
        assert tall <= 8, f"{path}: something stands letter by letter"
        await visitor.picture(f"small{path.replace('/', '-')}")


# --- when something is away ----------------------------------------------------------------------------


async def test_live_comes_back_after_the_connection_was_lost(house: House, visit: Visits) -> None:
    """The page says that it is not live, tries again by itself, and catches up with what it missed."""
    first = await house.score("lost-1")
    visitor = await visit("/")
    lines: list[Any] = []
    is_cut = False

    async def carry(line: Any) -> None:
        lines.append(line)
        if is_cut:
            await line.close(code=4008, reason="too slow: reconnect and catch up")
        else:
            line.connect_to_server()

    await visitor.page.route_web_socket("**/api/v1/ws", carry)
    await visitor.open("/sessions/lost-1")
    live = visitor.page.locator("#live-state")
    await expect(live).to_have_text("Live")
    await visitor.page.evaluate(WATCH_STATE)
    is_cut = True
    await lines[0].close(code=4008, reason="too slow: reconnect and catch up")
    await house.service.ask_again("lost-1", "event-again")
    await house.service.scores_reach(2, "session_id = 'lost-1' AND status = 'completed'")
    await expect(live).to_have_text("Not live: reload to see changes")
    is_cut = False
    await expect(live).to_have_text("Live", timeout=90_000)  # it tries every 30 s at last
    await expect(visitor.page.locator('aside a[href^="/scores/"]')).to_have_count(2)
    newest = await house.service.score_of("lost-1")
    assert newest is not None
    assert newest["score_id"] != first["score_id"]
    states = await shown_texts(visitor.page)  # kept on the page: it was not loaded anew
    assert list(dict.fromkeys(states)) == ["Reconnecting", "Not live: reload to see changes", "Live"]
