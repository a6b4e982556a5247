"""A database that goes away after a commit: the effect of a transaction without a reply happens once."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from builders import OTHER_CRITERIA, Scoring, completion, failure, open_scoring, rescore, session_completed
from proxy import DatabaseProxy
from tarsy_scoring.errors import LeaseLost
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.queue.store import SessionFacts


@dataclass(frozen=True)
class Lossy:
    """Scoring behind a proxy that can lose replies; `seen` bypasses the proxy, to arrange and to assert."""

    proxy: DatabaseProxy
    scoring: Scoring
    seen: Scoring

    def lose_next_reply(self) -> None:
        """Lose the reply to the next commit of `scoring`."""
        self.proxy.lose_commit_reply('"public".')  # part of every statement that a connection prepares


@pytest.fixture
async def lossy(database_url: str) -> AsyncIterator[Lossy]:
    async with (
        DatabaseProxy(database_url) as proxy,
        open_scoring(proxy.url, pool_size=3) as scoring,
        open_scoring(database_url) as seen,
    ):
        yield Lossy(proxy, scoring, seen)


async def test_accepting_stores_each_request_once(lossy: Lossy) -> None:
    requests = [session_completed(f"session-{n}") for n in range(3)]

    lossy.lose_next_reply()
    await lossy.scoring.accept(*requests)

    assert lossy.proxy.replies_lost == 1
    assert await lossy.seen.dispositions() == {r.request_id: "accepted" for r in requests}
    assert await lossy.seen.value("SELECT count(*) FROM session_scores") == 3
    assert await lossy.seen.events() == ["queued"] * 3


async def test_a_claim_without_a_reply_lapses(lossy: Lossy) -> None:
    """No heartbeat renews it, so that the score is taken back."""
    await lossy.seen.accept(session_completed("lost"), session_completed("next"))

    lossy.lose_next_reply()
    with pytest.raises(DatabaseAway):
        await lossy.scoring.claim(1)
    tracked = await lossy.scoring.claim()

    assert lossy.proxy.replies_lost == 1
    assert [c.session_id for c in tracked] == ["next"]
    await lossy.seen.rows("UPDATE session_scores SET lease_expires_at = now() - interval '1 s'")
    assert (await lossy.scoring.leases.keep(tracked, 60))[0] == {tracked[0].lease_token}
    assert await lossy.seen.take_back() == {"lost": "pending"}


async def test_an_attempt_after_a_look_begins_once(lossy: Lossy) -> None:
    claimed = await lossy.seen.claimed()
    wait = {"due_s": 0, "waiting_reason": "session", "burns": False, "spent_s": 0}
    await lossy.seen.leases.put_back(claimed, **wait)
    [look] = await lossy.scoring.claim()

    lossy.lose_next_reply()
    begun = await lossy.scoring.leases.begin_attempt(look)

    assert lossy.proxy.replies_lost == 1
    assert (look.is_lookup_only, look.attempt, begun.is_lookup_only, begun.attempt) == (True, 1, False, 2)
    assert (await lossy.seen.score(look.score_id))["attempt"] == 2
    attempt = ["started", "gathering_context"]
    assert await lossy.seen.events() == ["queued", *attempt, "waiting_retry", *attempt]


@pytest.mark.parametrize("build", [completion, failure], ids=["completed", "failed"])
async def test_an_end_is_stored_once(lossy: Lossy, build: Callable[..., Any]) -> None:
    """The repeat finds no lease and writes nothing."""
    claimed = await lossy.seen.claimed()
    await lossy.seen.accept(waiting := rescore(criteria=OTHER_CRITERIA))
    ending = build(claimed)

    lossy.lose_next_reply()
    with pytest.raises(LeaseLost):
        await lossy.scoring.store.end(ending)

    assert lossy.proxy.replies_lost == 1
    assert (await lossy.seen.score(claimed.score_id))["status"] == ending.columns["status"]
    assert (await lossy.seen.events())[-2:] == [ending.event.type.removeprefix("scoring."), "queued"]
    assert await lossy.seen.value("SELECT count(*) FROM session_scores") == 2
    assert (await lossy.seen.dispositions())[waiting.request_id] == "accepted"


async def test_a_score_is_declined_once(lossy: Lossy) -> None:
    await lossy.seen.accept(automatic := session_completed(chain_id=None))
    (claimed,) = await lossy.seen.claim()
    declined = failure(claimed, status="cancelled", disposition="disabled")
    bound: dict[str, Any] = {"chain_id": "k", "criteria": "c", "criteria_hash": "h", "facts": SessionFacts()}

    lossy.lose_next_reply()
    with pytest.raises(LeaseLost):
        await lossy.scoring.store.bind(claimed, **bound, declined=declined)

    assert lossy.proxy.replies_lost == 1
    row = await lossy.seen.score(claimed.score_id)
    assert (row["status"], row["chain_id"]) == ("cancelled", "k")
    assert await lossy.seen.dispositions() == {automatic.request_id: "disabled"}
    assert (await lossy.seen.events()).count("failed") == 1


async def test_a_score_is_put_back_once(lossy: Lossy) -> None:
    claimed = await lossy.seen.claimed()

    lossy.lose_next_reply()
    with pytest.raises(LeaseLost):
        await lossy.scoring.leases.put_back(claimed, due_s=0, waiting_reason="retry", burns=True, spent_s=2)

    assert lossy.proxy.replies_lost == 1
    row = await lossy.seen.score(claimed.score_id)
    assert (row["status"], row["attempts_burned"], row["spent_s"]) == ("pending", 1, 2)
    assert (await lossy.seen.events(claimed.score_id)).count("waiting_retry") == 1


async def test_a_score_is_taken_back_once(lossy: Lossy) -> None:
    claimed = await lossy.seen.claimed()
    await lossy.seen.lapse(claimed)

    lossy.lose_next_reply()
    with pytest.raises(DatabaseAway):
        await lossy.scoring.take_back()

    assert lossy.proxy.replies_lost == 1
    assert await lossy.scoring.take_back() == {}
    assert (await lossy.seen.score(claimed.score_id))["attempts_burned"] == 1
    assert (await lossy.seen.events(claimed.score_id)).count("waiting_retry") == 1
