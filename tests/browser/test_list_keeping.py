"""Keys, saved filters and columns of the list of sessions in a browser."""

import pytest
from playwright.async_api import expect
from visiting import Installation, Visits

pytestmark = pytest.mark.asyncio(loop_scope="module")

FOCUSED = "document.activeElement.id"


async def test_keys_move_through_the_list(installation: Installation, visit: Visits) -> None:
    """They move the focus, and type letters in fields; no key moves past an end of the list."""
    for name in ("keys-1", "keys-2"):
        await installation.score(name)
    visitor = await visit("/?q=keys-&sort=newest")
    page, keyboard = visitor.page, visitor.page.keyboard
    for key, focused in (("j", "keys-2"), ("j", "keys-1"), ("j", "keys-1"), ("k", "keys-2"), ("k", "keys-2")):
        await keyboard.press(key)
        assert await page.evaluate(FOCUSED) == f"row-{focused}", key
    await visitor.screenshot("list-focused-row")
    await keyboard.press("/")
    assert await page.evaluate(FOCUSED) == "q"
    await keyboard.type("j?k/")
    await expect(page.locator("#q")).to_have_value("j?k/")
    await expect(page.locator("#keys")).to_be_hidden()

    await page.locator("h1").click()
    await keyboard.press("Control+j")
    assert await page.evaluate(FOCUSED) != "row-keys-2"
    await keyboard.press("k")
    async with page.expect_navigation():
        await keyboard.press("Enter")
    assert page.url.endswith("/sessions/keys-1")


async def test_keys_are_listed_and_can_be_switched_off(visit: Visits) -> None:
    """The choice is kept in the browser."""
    visitor = await visit("/")
    page, keys = visitor.page, visitor.page.get_by_role("dialog", name="Keyboard")
    await page.keyboard.press("?")
    await expect(keys).to_be_visible()
    await visitor.screenshot("list-keys")
    await keys.get_by_role("checkbox").uncheck()
    await page.keyboard.press("Escape")
    await visitor.open("/")
    await page.keyboard.press("?")
    await page.keyboard.press("/")
    await expect(keys).to_be_hidden()
    assert await page.evaluate(FOCUSED) != "q"
    await page.get_by_role("button", name="Keyboard").click()
    await expect(keys.get_by_role("checkbox")).not_to_be_checked()


async def test_a_filter_is_saved_as_a_link(visit: Visits) -> None:
    """It stays until it is removed; its name is text, and the place in the list is no part of it."""
    visitor = await visit("/?q=keys-&min=&status=failed&sort=newest&columns=ended")
    page, name = visitor.page, "<img src=x onerror=alert(1)>"
    await page.get_by_label("Save this filter as").fill(name)
    await page.get_by_role("button", name="Save", exact=True).click()
    await visitor.open("/")
    link = page.get_by_role("link", name=name)
    assert await link.get_attribute("href") == "/?q=keys-&status=failed"
    await visitor.follow(link)
    await expect(page.locator("#status")).to_have_value("failed")
    await expect(page.get_by_role("link", name=name)).to_have_attribute("aria-current", "page")
    await visitor.screenshot("list-saved-filter")
    await page.get_by_role("button", name="Remove the saved filter").click()
    await expect(page.get_by_role("link", name=name)).to_have_count(0)
    await visitor.open("/")
    await expect(page.locator("#saved")).to_be_hidden()


@pytest.mark.parametrize("kept", ['"text"', '[null, 1, {"name": 2}, {"name": "n", "query": {}}]', "not JSON"])
async def test_what_another_version_stored_is_left_out(visit: Visits, kept: str) -> None:
    visitor = await visit("/")
    await visitor.page.evaluate(
        "kept => ['list.filters', 'list.columns'].forEach(n => localStorage.setItem(n, kept))", kept
    )
    await visitor.open("/?q=keys-")
    await expect(visitor.page.locator("#save-filter")).to_be_visible()
    await expect(visitor.page.locator("#saved-links li")).to_have_count(0)


async def test_chosen_columns_are_remembered(installation: Installation, visit: Visits) -> None:
    """The address decides; a list without columns in its address takes those that were chosen last."""
    await installation.score("columns-1")
    visitor = await visit("/?q=columns-")
    page = visitor.page
    await page.get_by_text("Columns", exact=True).click()
    await page.get_by_label("Judge").check()
    await page.get_by_label("Remarks").uncheck()
    await visitor.show()
    judge, remarks = page.locator('thead th:text-is("Judge")'), page.locator('thead th:text-is("Remarks")')
    await expect(judge).to_have_count(1)
    await page.goto(f"{visitor.address}/?q=columns-")
    await expect(judge).to_have_count(1)
    await expect(remarks).to_have_count(0)
    await page.goto(f"{visitor.address}/?q=columns-&columns=remarks")
    await expect(judge).to_have_count(0)
    await expect(remarks).to_have_count(1)


async def test_without_javascript_columns_can_be_chosen(installation: Installation, visit: Visits) -> None:
    await installation.score("plain-1")
    visitor = await visit("/?q=plain-", java_script_enabled=False)
    page = visitor.page
    for hidden in ("#saved", "#show-keys", "#keys"):
        await expect(page.locator(hidden)).to_be_hidden()
    await page.get_by_text("Columns", exact=True).click()
    for name in ("Chain", "Remarks", "Ended"):
        await page.get_by_label(name, exact=True).locator("visible=true").last.uncheck()
    await visitor.show()
    assert await page.locator("#region-rows thead th").all_inner_texts() == ["Session", "Score", "Actions"]
