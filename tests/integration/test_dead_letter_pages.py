"""Dead letters and their page: each message once, with its last replay."""

from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api_site import Api, open_api
from tarsy_scoring.dead_letters.letter_states import LetterState, newest_letters, note_failure, note_replay
from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.events import Origin

HOSTILE = "<script>alert(1)</script>\u202e\0"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url) as opened:
        yield opened


async def store_letters(api: Api) -> None:
    """One that was never replayed, one that was, and one that failed again, at the offsets 0 to 2."""
    database, now = api.scoring.database, datetime.now(UTC)
    letters = [Origin("session-completed", 1, offset, 0) for offset in range(3)]
    for letter in letters:
        await note_failure(database, letter, InvalidMessage("invalid_field", HOSTILE))
    await note_replay(database, letters[1], now + timedelta(seconds=9))
    await note_replay(database, letters[2], now - timedelta(seconds=9))
    await note_failure(database, letters[2], InvalidMessage("not_json", HOSTILE))


async def asked(api: Api, state: LetterState | None = None, limit: int = 50) -> Any:
    return asdict(await newest_letters(api.scoring.database, state, limit))


async def test_each_message_has_its_state(api: Api) -> None:
    await store_letters(api)

    found = await asked(api)
    states = {one["original_offset"]: (one["state"], one["error"], one["times"]) for one in found["dead_letters"]}
    assert states == {
        0: ("open", "invalid_field", 1),
        1: ("replayed", "invalid_field", 1),
        2: ("open", "not_json", 2),
    }
    assert (found["left_out"], found["by_state"]) == (0, {"open": 2, "replayed": 1})
    assert [one["original_offset"] for one in (await asked(api, state="replayed"))["dead_letters"]] == [1]
    assert (await asked(api, state="open", limit=1))["left_out"] == 1


async def test_the_page_says_what_is_open(api: Api) -> None:
    assert "No message became a dead letter" in (await api.client.get("/dead-letters")).text
    await store_letters(api)
    page = (await api.client.get("/dead-letters", headers={"Accept": "text/html"})).text

    assert "<script>alert" not in page
    assert "\u202e" not in page
    for said in ("of which 2 are open", "replayed", "1:2"):
        assert said in page
