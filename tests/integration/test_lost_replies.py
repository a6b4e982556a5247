"""A database that goes away after a commit: the effect of a transaction without a reply happens once."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from builders import OTHER_CRITERIA, Scoring, completion, failure, open_scoring, rescore, session_completed
from proxy import DatabaseProxy
from tarsy_scoring.errors import LeaseLost
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.queue.claims import ClaimedScore
from tarsy_scoring.queue.store import Ending, SessionFacts


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


async def test_accepting_supersedes_a_deferred_request_once(lossy: Lossy) -> None:
    await lossy.seen.accept(session_completed())
    older, newer = (rescore(criteria=OTHER_CRITERIA) for _ in range(2))

    lossy.lose_next_reply()
    await lossy.scoring.accept(older, newer)

    assert lossy.proxy.replies_lost == 1
    dispositions = await lossy.seen.dispositions()
    assert (dispositions[older.request_id], dispositions[newer.request_id]) == ("superseded", "deferred")


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
    assert (await lossy.scoring.leases.keep(tracked, 60)).held == {tracked[0].lease_token}
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
    """The repeat recognises its own committed transaction."""
    claimed = await lossy.seen.claimed()
    await lossy.seen.accept(waiting := rescore(criteria=OTHER_CRITERIA))
    ending = build(claimed)

    lossy.lose_next_reply()
    await lossy.scoring.store.end(ending)

    assert lossy.proxy.replies_lost == 1
    assert (await lossy.seen.score(claimed.score_id))["status"] == ending.columns["status"]
    assert (await lossy.seen.events())[-2:] == [ending.event.type.removeprefix("scoring."), "queued"]
    assert await lossy.seen.value("SELECT count(*) FROM session_scores") == 2
    assert (await lossy.seen.dispositions())[waiting.request_id] == "accepted"
    with pytest.raises(LeaseLost):  # a second call is no repeat of the first
        await lossy.scoring.store.end(ending)


async def test_a_score_is_declined_once(lossy: Lossy) -> None:
    await lossy.seen.accept(automatic := session_completed(chain_id=None))
    (claimed,) = await lossy.seen.claim()
    declined = failure(claimed, status="cancelled", disposition="disabled")
    bound: dict[str, Any] = {"chain_id": "k", "criteria": "c", "criteria_hash": "h", "facts": SessionFacts()}

    lossy.lose_next_reply()
    _, is_declined = await lossy.scoring.store.bind(claimed, **bound, declined=declined)

    assert (lossy.proxy.replies_lost, is_declined) == (1, True)
    row = await lossy.seen.score(claimed.score_id)
    assert (row["status"], row["chain_id"]) == ("cancelled", "k")
    assert await lossy.seen.dispositions() == {automatic.request_id: "disabled"}
    assert (await lossy.seen.events()).count("failed") == 1


async def _cancelled(seen: Scoring, claimed: ClaimedScore) -> None:
    await seen.leases.cancel(claimed.score_id, "bob")


async def _taken_back(seen: Scoring, claimed: ClaimedScore) -> None:
    await seen.lapse(claimed)
    await seen.take_back(max_attempts=1)


async def _given_back(seen: Scoring, claimed: ClaimedScore) -> None:
    await seen.leases.put_back(claimed, due_s=0, waiting_reason=None, burns=False, spent_s=0)


async def _timed_out(seen: Scoring, claimed: ClaimedScore) -> None:
    await seen.lapse(claimed)
    assert set((await seen.take_back(deadline_s=-60)).values()) == {"timed_out"}


def our_timeout(claimed: ClaimedScore) -> Ending:
    return failure(claimed, status="timed_out", error_kind="deadline_passed", error_message="not scored in time")


async def _scored_by_another(seen: Scoring, claimed: ClaimedScore) -> None:
    await seen.lapse(claimed)
    await seen.take_back()
    await seen.make_due()
    (again,) = await seen.claim()
    await seen.store.end(completion(again, total_score=11))


@pytest.mark.parametrize(
    ("build", "somebody"),
    [
        pytest.param(completion, _cancelled, id="cancelled"),
        pytest.param(completion, _given_back, id="given-back"),
        pytest.param(failure, _taken_back, id="taken-back"),
        pytest.param(our_timeout, _timed_out, id="timed-out-as-ours"),
        pytest.param(completion, _scored_by_another, id="scored-by-another"),
    ],
)
async def test_an_end_that_was_rolled_back_is_not_confused_with_anothers(
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    build: Callable[..., Any],
    somebody: Callable[[Scoring, ClaimedScore], Awaitable[None]],
) -> None:
    """The repeat must not take another writer's end for its own, however similar they are."""
    async with open_scoring(database_url) as scoring, open_scoring(database_url) as seen:
        claimed = await scoring.claimed()
        once, tries = scoring.database.once, 0

        async def cut_off_at_first(work: Callable[[Any], Awaitable[Any]]) -> Any:
            nonlocal tries
            tries += 1
            if tries > 1:
                return await once(work)

            async def then_cut_off(connection: Any) -> None:
                await work(connection)
                raise ConnectionResetError

            try:
                return await once(then_cut_off)
            finally:
                await somebody(seen, claimed)

        monkeypatch.setattr(scoring.database, "once", cut_off_at_first)
        with pytest.raises(LeaseLost):
            await scoring.store.end(build(claimed))

        assert tries == 2


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
