"""Selections from real rows: obsolete scores, sessions never scored, and the usage of earlier scores."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest

from builders import (
    DEFAULT_CRITERIA,
    HASHES,
    OTHER_CRITERIA,
    Scoring,
    completion,
    failure,
    open_scoring,
    policy,
    rescore,
)
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.queue.admission import Policy, Request
from tarsy_scoring.queue.selection import Amount, estimate_of, never_scored, obsolete_sessions
from tarsy_scoring.timeline.model import FoundSession

EDITED = policy(hashes=HASHES | {DEFAULT_CRITERIA: "edited"})
USAGE = {"input_tokens": 1000, "cached_input_tokens": 600, "output_tokens": 200, "cost_usd": 0.03}


async def scored(scoring: Scoring, session_id: str, usage: dict[str, Any] | None = None, **request: Any) -> None:
    """Store one more completed production score of a session."""
    await scoring.store.end(completion(await scoring.claimed(session_id, **request), usage=usage))


async def other(scoring: Scoring, session_id: str, purpose: str = "consistency", **columns: Any) -> None:
    """Store a completed score of another purpose."""
    claimed = await scoring.claimed(session_id, purpose=purpose, **columns)
    await scoring.store.end(completion(claimed, usage=USAGE))


# --- obsolete ------------------------------------------------------------------------------------------


async def obsolete(
    scoring: Scoring, of: Policy = EDITED, chain: str | None = None, since: datetime | None = None
) -> list[str]:
    return await obsolete_sessions(scoring.database, of, chain, since)


async def test_a_score_is_obsolete_once_its_criteria_have_changed(scoring: Scoring) -> None:
    await scored(scoring, "session-1")

    assert await obsolete(scoring, policy()) == []
    assert await obsolete(scoring, EDITED) == ["session-1"]


async def test_the_criteria_of_the_sessions_own_chain_count(scoring: Scoring) -> None:
    of = policy(billing={"criteria": OTHER_CRITERIA})
    for session, chain in (("billing-1", "billing"), ("kubernetes-1", "kubernetes"), ("no-chain", None)):
        await scored(scoring, session, chain_id=chain, criteria=DEFAULT_CRITERIA)

    assert await obsolete(scoring, of) == ["billing-1"]
    assert await obsolete(scoring, policy({"criteria": OTHER_CRITERIA}, billing={"criteria": DEFAULT_CRITERIA})) == [
        "kubernetes-1",
        "no-chain",
    ]


async def test_no_score_of_a_chain_without_a_judge_is_obsolete(scoring: Scoring) -> None:
    for session, chain in (("billing-1", "billing"), ("kubernetes-1", "kubernetes"), ("no-chain", None)):
        await scored(scoring, session, chain_id=chain, criteria=DEFAULT_CRITERIA)
    on, off = {"judge": {"enabled": True}}, {"judge": {"enabled": False}}

    assert await obsolete(scoring, policy(hashes=EDITED.hashes, billing=off)) == ["kubernetes-1", "no-chain"]
    assert await obsolete(scoring, policy(off, hashes=EDITED.hashes, billing=on)) == ["billing-1"]


async def test_the_newest_completed_score_decides(scoring: Scoring) -> None:
    async with open_scoring(scoring.url, EDITED) as edited:
        await scored(scoring, "mended")
        await scored(edited, "mended")
        await scored(scoring, "failed-since")
        await edited.store.end(failure(await edited.claimed("failed-since")))
        await scored(edited, "undone")
        await scored(edited, "undone", criteria=OTHER_CRITERIA)
        await scoring.store.end(failure(await scoring.claimed("never-completed")))

    assert await obsolete(scoring) == ["failed-since", "undone"]


@pytest.mark.parametrize("is_claimed", [False, True], ids=["pending", "in-progress"])
async def test_a_session_with_an_open_current_score_is_not_obsolete(scoring: Scoring, is_claimed: bool) -> None:
    """An open score under other criteria does not count."""
    await scored(scoring, "session-1")
    await scored(scoring, "session-2")
    async with open_scoring(scoring.url, EDITED) as edited:
        await edited.accept(*(_again(s, **c) for s, c in (("session-1", {}), ("session-2", {"criteria": "others"}))))
        if is_claimed:
            await edited.claim()

    assert await obsolete(scoring) == ["session-2"]


async def test_unknown_criteria_are_refused(scoring: Scoring) -> None:
    with pytest.raises(ConfigurationError, match=r"chains\.billing\.criteria.*'none'"):
        await obsolete(scoring, policy(billing={"criteria": "none"}))


# --- never scored --------------------------------------------------------------------------------------


async def unscored(scoring: Scoring, *sessions: FoundSession) -> list[str]:
    async def listed() -> AsyncIterator[FoundSession]:
        for session in sessions:
            yield session

    return [s.session_id for s in await never_scored(scoring.database, listed())]


async def test_never_scored_are_sessions_without_a_production_score(scoring: Scoring) -> None:
    await scored(scoring, "completed")
    await scoring.store.end(failure(await scoring.claimed("failed")))
    await scoring.store.end(failure(await scoring.claimed("declined"), status="cancelled", error_kind="cancelled"))
    await other(scoring, "judged-beside")
    await scoring.claimed("in-progress")
    await scoring.accept(_again("pending"))

    names = ["completed", "failed", "declined", "judged-beside", "in-progress", "pending", "unheard-of"]
    sessions = [FoundSession(name, "kubernetes", "completed", None) for name in names]
    assert await unscored(scoring, *sessions) == ["declined", "judged-beside", "unheard-of"]
    assert await unscored(scoring) == []


# --- estimates -----------------------------------------------------------------------------------------


async def test_a_session_takes_the_average_of_its_chain(scoring: Scoring) -> None:
    """Sessions without a chain count as one chain; what no score says is unknown, and not invented."""
    await scored(scoring, "scored-1", USAGE)
    await scored(scoring, "scored-2", USAGE | {"input_tokens": 3000, "cost_usd": None})
    await scored(scoring, "of-none", USAGE | {"cost_usd": None}, chain_id=None)
    await scoring.store.end(failure(await scoring.claimed("failed"), usage=USAGE | {"input_tokens": 10**6}))

    estimate = await estimate_of(
        scoring.database, {"failed": None, "new": "kubernetes", "elsewhere": "billing", "unheard-of": None}
    )

    assert estimate.tokens == Amount(2 * 2200 + 1200, 1)
    assert estimate.cost_usd == Amount(pytest.approx(0.06), 2)
    assert (estimate.sessions, estimate.chains) == (4, {"kubernetes": 2, "billing": 1, None: 1})


def _again(session_id: str, **changes: Any) -> Request:
    return rescore(session_id, chain_id="kubernetes", **changes)
