"""Why judges missed a tool: which reasons are found, and how the page quotes them."""

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from test_pages_served import look

from api_site import Api, open_api
from stored import NOON, store_score
from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.missing_tools.ledger import read_ledger
from tarsy_scoring.missing_tools.reasons import read_reasons

EVIL = "<script>alert(1)</script>"
PAGE = "/missing-tools?since="


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url) as opened:
        yield opened


async def missed(api: Api, session_id: str, total: int, rationale: str, *names: str, **columns: Any) -> uuid.UUID:
    """A score that names missing tools, all with this rationale."""
    score_id = await store_score(api.scoring, session_id, total, missing_tools=names or ("node_cpu",), **columns)
    await api.scoring.rows("UPDATE score_missing_tools SET rationale = $2 WHERE score_id = $1", score_id, rationale)
    return score_id


async def found(api: Api, **selected: Any) -> dict[str, list[str]]:
    """Reasons by tool."""
    database, selection = api.scoring.database, Selection(**selected)
    tools = (await read_ledger(database, selection)).tools
    lists = await read_reasons(database, selection, tools)
    return {t.tool_name: [reason.reason for reason in own] for t, own in zip(tools, lists, strict=True)}


async def test_two_reasons_of_the_lowest_totals_with_different_texts(api: Api) -> None:
    for session, total, rationale in (("a", 10, "one"), ("b", 20, "one"), ("c", 30, "two"), ("d", 40, "three")):
        await missed(api, session, total, rationale, "node_cpu", "Node CPU")

    assert await found(api) == {"Node CPU": ["one", "two"]}


async def test_only_scores_of_the_selection_give_reasons(api: Api) -> None:
    """The latest of a session, without a reference, and not one that its session may have steered."""
    await missed(api, "replaced", 1, "replaced")
    await missed(api, "replaced", 50, "latest", at=NOON + timedelta(hours=1))
    await missed(api, "steered", 2, "steered", flags=["tampering_suspected"])
    await missed(api, "known", 3, "known", reference={"text": "x"})
    await missed(api, "early", 4, "early", at=NOON - timedelta(days=2))
    await missed(api, "other", 5, "other", session={"chain_id": "network"})

    assert await found(api, chain="kubernetes", since=NOON - timedelta(days=1)) == {"node_cpu": ["latest"]}


async def test_the_page_quotes_reasons_with_their_scores(api: Api) -> None:
    lowest = await missed(api, "a", 10, EVIL)
    await missed(api, "b", 20, "two")

    page = await look(api, PAGE)

    assert EVIL not in page.html
    assert EVIL in unescape(page.html)
    assert page.all("a", href=f"/scores/{lowest}")
