"""The rate of changes of a caller, over all processes of the API."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from api_site import Api, open_api
from builders import connected
from infrastructure import wait_until
from tarsy_scoring.config.settings import Settings

PER_MINUTE = 7


@pytest.fixture
async def apis(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Api, Api]]:
    """Two processes of the API on one database."""
    monkeypatch.setattr("api_site.SETTINGS", Settings(trusted_proxies="127.0.0.0/8", api_rate_per_minute=PER_MINUTE))
    async with open_api(database_url) as one, open_api(database_url) as other:
        yield one, other


async def change(api: Api, by: str) -> int:
    """A change that is refused by its route, so that only its rate counts."""
    answer = await api.client.post("/api/v1/scoring/sessions/unknown/score", json={}, headers={"X-Forwarded-User": by})
    if answer.status_code == 429:
        assert 1 <= int(answer.headers["retry-after"]) <= 60 / PER_MINUTE + 1
    return int(answer.status_code)


async def test_the_rate_of_a_caller_holds_over_all_processes(apis: tuple[Api, Api]) -> None:
    changes = [(apis[n % 2], "alice") for n in range(2 * PER_MINUTE - 2)]
    statuses = await asyncio.gather(*(change(api, by) for api, by in changes))

    assert (statuses.count(404), statuses.count(429)) == (PER_MINUTE, PER_MINUTE - 2)
    assert [await change(api, "bob") for api in apis] == [404, 404]
    assert (await apis[0].client.get("/api/v1/scoring/sessions", headers={"X-Forwarded-User": "alice"})).is_success


async def test_a_caller_may_change_again_when_its_bucket_has_filled(apis: tuple[Api, Api]) -> None:
    """Full buckets leave no row behind."""
    one, other = apis
    assert [await change(one, "alice") for _ in range(PER_MINUTE)] == [404] * PER_MINUTE
    assert await change(other, "alice") == 429

    await one.scoring.rows("UPDATE caller_rates SET full_at = full_at - interval '1 minute' / $1::int", PER_MINUTE)
    assert [await change(other, "alice") for _ in range(2)] == [404, 429]

    await one.scoring.rows("UPDATE caller_rates SET full_at = full_at - interval '2 minutes'")
    assert await change(other, "bob") == 404
    assert [row["caller"] for row in await one.scoring.rows("SELECT caller FROM caller_rates")] == ["bob"]


async def test_a_change_without_a_database_is_503(apis: tuple[Api, Api]) -> None:
    await apis[0].scoring.database.close()

    assert await change(apis[0], "alice") == 503
    assert await change(apis[1], "alice") == 404
    await apis[0].scoring.database.open()


async def test_a_caller_that_waits_for_its_bucket_holds_up_no_other(apis: tuple[Api, Api]) -> None:
    """Full buckets are deleted after the caller's own row was locked, else two callers could wait for each other."""
    one, other = apis
    assert [await change(one, by) for by in ("alice", "bob")] == [404, 404]
    await one.scoring.rows("UPDATE caller_rates SET full_at = full_at - interval '2 minutes'")

    async with connected(one.scoring.url) as holder, asyncio.TaskGroup() as group, holder.transaction():
        await holder.execute("SELECT FROM caller_rates WHERE caller = 'alice' FOR UPDATE")
        group.create_task(change(one, "alice"))
        await wait_until(one.scoring.backends_waiting_for_a_lock, 30, "alice waits for her bucket")
        assert await change(other, "bob") == 404
        assert await other.scoring.value("SELECT full_at > now() FROM caller_rates WHERE caller = 'bob'")
