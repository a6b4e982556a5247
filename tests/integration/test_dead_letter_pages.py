"""Dead letters over HTTP: each message once, with its last replay and what came of it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api_site import Api, open_api
from tarsy_scoring.dead_letters.letter_states import note_failure, note_replay, note_understood
from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.events import Origin

HOSTILE = "<script>alert(1)</script>\u202e\0"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url) as opened:
        yield opened


async def store_letters(api: Api) -> None:
    """One of each state, at the offsets 0 to 3, and one of an earlier version at the largest offset."""
    database, now = api.scoring.database, datetime.now(UTC)
    letters = [Origin("session-completed", 1, offset, 0) for offset in range(4)]
    for letter in letters:
        await note_failure(database, letter, InvalidMessage("invalid_field", HOSTILE))
    for letter in letters[1:]:
        await note_replay(database, letter, "invalid_field", "", now + timedelta(seconds=9))
    await note_replay(database, letters[2], "invalid_field", "", now - timedelta(seconds=9))
    await note_understood(database, [letters[2]])
    await note_replay(database, letters[3], "invalid_field", "", now - timedelta(seconds=9))
    await note_failure(database, letters[3], InvalidMessage("not_json", HOSTILE))
    await note_replay(database, Origin("session-completed", 2**31, 2**63 - 1, 0), "old\0", HOSTILE, now)


async def asked(api: Api, **query: Any) -> Any:
    answer = await api.get("dead-letters", **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_each_message_has_its_state(api: Api) -> None:
    await store_letters(api)

    found = await asked(api)
    states = {one["original_offset"]: (one["state"], one["error"], one["times"]) for one in found["dead_letters"]}
    assert states == {
        0: ("not_replayed", "invalid_field", 1),
        1: ("sent", "invalid_field", 1),
        2: ("understood", "invalid_field", 1),
        3: ("still_fails", "not_json", 2),
        2**63 - 1: ("sent", "old", 1),
    }
    assert (found["left_out"], found["by_state"]["sent"]) == (0, 2)
    assert [one["original_offset"] for one in (await asked(api, state="still_fails"))["dead_letters"]] == [3]
    assert (await asked(api, state="sent", limit=1))["left_out"] == 1
    assert (await api.get("dead-letters", state="lost")).status_code == 422


async def test_the_page_says_what_came_of_replays(api: Api) -> None:
    assert "No message became a dead letter" in (await api.client.get("/dead-letters")).text
    await store_letters(api)
    page = (await api.client.get("/dead-letters", headers={"Accept": "text/html"})).text

    assert "<script>alert" not in page
    assert "\u202e" not in page
    for said in ("still: not_json", "understood", "sent, not read yet", "1:3"):
        assert said in page
