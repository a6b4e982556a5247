"""The holder of a lease may write in the middle of an attempt, and no other worker may."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from builders import Scoring, completion, connected, session_completed, step, turn
from tarsy_scoring.errors import LeaseLost
from tarsy_scoring.queue.claims import ClaimedScore
from tarsy_scoring.queue.store import SessionFacts, StoredTurn
from tarsy_scoring.retention.erasure import erase

# --- within an attempt ---------------------------------------------------------------------------------


async def test_steps_are_stored_as_they_happen(scoring: Scoring) -> None:
    claimed = await scoring.claimed()
    reply = 'Reasoned "well"\n\u2028 \U0001f600 \\u0000 {"a": [1]}\n\n67'

    await scoring.store.record(step(claimed, "analyzing_methodology"))
    await scoring.store.record(step(claimed, "identifying_missing_tools", 1, reply=reply, refusal=None))
    await scoring.store.record(step(claimed, None, 2, kind="missing_tools", input_tokens=None, cost_usd=None))

    stored = await scoring.store.stored_turns(claimed.score_id)
    asked = ("hash-default", "context-1", claimed.nonce)
    assert stored == [
        StoredTurn(1, *asked, "asked-1", turn(reply)),
        StoredTurn(2, *asked, "asked-2", turn(kind="missing_tools", input_tokens=None, cost_usd=None)),
    ]
    assert (await scoring.events(claimed.score_id))[3:] == ["analyzing_methodology", "identifying_missing_tools"]
    shown = await scoring.reader.score(claimed.score_id)
    assert shown is not None
    assert shown["current_stage"] == "identifying_missing_tools"


async def test_a_repeated_step_is_stored_once(scoring: Scoring) -> None:
    claimed = await scoring.claimed()

    for _ in range(3):
        await scoring.store.record(step(claimed, "analyzing_methodology", 1))

    assert len(await scoring.store.stored_turns(claimed.score_id)) == 1
    assert (await scoring.events(claimed.score_id)).count("analyzing_methodology") == 1


async def test_binding_adds_what_the_source_knows(scoring: Scoring) -> None:
    """Where both have an alert type or a label, those of the source count. Its labels need no room."""
    others = {f"label-{n}": "x" for n in range(48)}
    event = {"alert_type": "event", "labels": {"guidance": "event"} | others | {"run": "7"}}
    await scoring.accept(session_completed(chain_id=None, **event))
    [claimed] = await scoring.claim()
    learned = SessionFacts("disk-full", {"guidance": "source", "team": "a"})

    bound, _ = await scoring.store.bind(claimed, chain_id="cli", criteria="c", criteria_hash="h", facts=learned)

    assert (bound.chain_id, bound.criteria, bound.criteria_hash, bound.alert_type) == ("cli", "c", "h", "disk-full")
    assert (len(bound.labels), bound.labels["guidance"], bound.labels["team"]) == (50, "source", "a")
    [session] = await scoring.rows("SELECT * FROM sessions")
    assert (session["chain_id"], session["alert_type"], session["labels"]) == ("cli", "disk-full", bound.labels)
    row = await scoring.score(claimed.score_id)
    assert (row["chain_id"], row["criteria"], row["criteria_hash"]) == ("cli", "c", "h")


# --- beside a lock -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "locked"), [("record", "session_scores"), ("end", "session_scores"), ("end", "sessions")]
)
async def test_a_locked_score_holds_up_no_other_write(scoring: Scoring, write: str, locked: str) -> None:
    """All three share a batch; that of the score which another program keeps locked follows later."""
    await scoring.accept(*(session_completed(f"session-{n}") for n in range(3)))
    claimed = await scoring.claim()
    async with connected(scoring.url) as stranger:
        async with stranger.transaction():
            await stranger.execute(f"SELECT FROM {locked} WHERE session_id = 'session-1' FOR UPDATE")
            writes = {c.session_id: asyncio.ensure_future(WRITES[write](scoring, c)) for c in claimed}

            await asyncio.wait_for(asyncio.gather(writes["session-0"], writes["session-2"]), 5)

            assert not writes["session-1"].done()
        await asyncio.wait_for(writes["session-1"], 10)


# --- without the lease ---------------------------------------------------------------------------------


LATE = SessionFacts(labels={"late": "yes"})


def _bind(scoring: Scoring, held: ClaimedScore) -> Awaitable[Any]:
    return scoring.store.bind(held, chain_id=None, criteria="late", criteria_hash="late", facts=LATE)


def _put_back(scoring: Scoring, held: ClaimedScore) -> Awaitable[Any]:
    return scoring.leases.put_back(held, due_s=10, waiting_reason="retry", burns=True, spent_s=3)


WRITES: dict[str, Callable[[Scoring, ClaimedScore], Awaitable[Any]]] = {
    "record": lambda scoring, held: scoring.store.record(step(held, "storing", 7)),
    "end": lambda scoring, held: scoring.store.end(replace(completion(held, total_score=1), facts=LATE)),
    "put-back": _put_back,
    "bind": _bind,
}


@pytest.mark.parametrize("how_lost", ["taken-back", "claimed-again", "ended", "cancelled", "erased"])
async def test_without_the_lease_nothing_is_written(scoring: Scoring, how_lost: str) -> None:
    held = await scoring.claimed()
    if how_lost in ("taken-back", "claimed-again"):
        await scoring.lapse(held)
        await scoring.take_back()
        await scoring.make_due()
    if how_lost == "claimed-again":
        assert len(await scoring.claim()) == 1
    if how_lost == "ended":
        await scoring.store.end(completion(held))
    if how_lost == "cancelled":
        assert await scoring.leases.cancel(held.score_id, "alice")
    if how_lost == "erased":
        await erase(scoring.database, scoring.leases, held.session_id, by="ada", relay_wait_s=0)
    before = await scoring.everything()

    for write in WRITES.values():
        with pytest.raises(LeaseLost):
            await write(scoring, held)

    assert await scoring.everything() == before


@pytest.mark.parametrize("order", [1, -1], ids=["lost-one-first", "holder-first"])
async def test_a_lost_lease_is_refused_beside_its_successor(scoring: Scoring, order: int) -> None:
    """Both attempts of one score write in the same batch."""
    old = await scoring.claimed()
    await scoring.lapse(old)
    await scoring.take_back()
    await scoring.make_due()
    [new] = await scoring.claim()

    steps = [step(old, "storing", 1, reply="old"), step(new, "analyzing_methodology", 2, reply="new")]
    ends = [completion(old, total_score=1), completion(new, total_score=2)]
    recorded = await asyncio.gather(*(scoring.store.record(s) for s in steps[::order]), return_exceptions=True)
    ended = await asyncio.gather(*(scoring.store.end(e) for e in ends[::order]), return_exceptions=True)

    assert [type(r) for r in recorded[::order]] == [LeaseLost, type(None)]
    assert [type(r) for r in ended[::order]] == [LeaseLost, type(None)]
    assert [s.turn.reply for s in await scoring.store.stored_turns(new.score_id)] == ["new"]
    assert (await scoring.score(new.score_id))["total_score"] == 2
    assert (await scoring.events(new.score_id))[-2:] == ["analyzing_methodology", "completed"]
