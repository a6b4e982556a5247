"""The bounds on due scores at which intake pauses, on a real database."""

from typing import Any

import pytest
import structlog

from builders import OTHER_CRITERIA, Scoring, rescore, session_completed
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import WaitingFor
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.limits.rules import Standing, Standings
from tarsy_scoring.queue import capacity as capacity_module
from tarsy_scoring.queue.admission import Priority
from tarsy_scoring.queue.backlog import due_scores
from tarsy_scoring.queue.capacity import Capacity
from tarsy_scoring.telemetry.metrics import Metrics


def of_chain(chain_id: str, count: int) -> list[Any]:
    return [session_completed(f"{chain_id}-{n}", chain_id=chain_id) for n in range(count)]


async def test_due_scores_are_counted_up_to_a_limit_without_bulk(scoring: Scoring) -> None:
    await scoring.accept(
        *(session_completed(f"automatic-{n}") for n in range(3)),
        *(rescore(f"asked-{n}") for n in range(3)),
        *(rescore(f"bulk-{n}", priority=Priority.BULK) for n in range(4)),
        rescore("asked-0", criteria=OTHER_CRITERIA),  # deferred
    )
    await scoring.rows("UPDATE session_scores SET next_attempt_at = now() + '1 h' WHERE session_id = 'asked-1'")
    await scoring.claim(1)

    nothing_held = Standings({}, Standing())
    assert await due_scores(scoring.database, nothing_held, 100) == {"pending": 4, "held": 0}
    assert await due_scores(scoring.database, nothing_held, 3) == {"pending": 3, "held": 0}


@pytest.mark.parametrize(
    ("reason", "bound"),
    [
        ("pause", "held"),
        ("budget", "held"),
        ("circuit", "held"),
        ("key", "held"),
        ("quota", "held"),
        ("rate_limit", "pending"),
    ],
)
async def test_a_chain_that_is_held_up_for_long_counts_apart(scoring: Scoring, reason: WaitingFor, bound: str) -> None:
    """A full rate limit is no such hold: the chain is at work."""
    await scoring.accept(*of_chain("billing", 3), *of_chain("kubernetes", 2))
    one = Standings({"billing": Standing(reason), "": Standing()}, Standing())
    all_but_one = Standings({"kubernetes": Standing(), "": Standing()}, Standing(reason))

    for standings in (one, all_but_one):
        due = await due_scores(scoring.database, standings, 100)
        assert due == {"pending": 2, "held": 3} if bound == "held" else {"pending": 5, "held": 0}


async def test_a_paused_chain_leaves_room_for_other_chains(scoring: Scoring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a larger bound of its own; intake resumes when the hold ends."""
    monkeypatch.setattr(capacity_module, "COUNT_EVERY_S", 0)
    monkeypatch.setattr(capacity_module, "COUNTING_SHARE", 1e9)
    monkeypatch.setattr(capacity_module, "HELD_PER_PENDING", 1.4)
    settings = load_settings({"SCORING_MAX_PENDING": "50"})
    metrics, limits = Metrics(), Limits(scoring.database, settings)
    capacity = Capacity(settings, scoring.database, metrics, limits.refreshed_standings)

    def paused_by() -> dict[str, float | None]:
        sample = metrics.registry.get_sample_value
        return {b: sample("tarsy_scoring_intake_paused", {"bound": b}) for b in ("pending", "held")}

    await limits.pause("billing", None, "alice", None)
    await scoring.accept(*of_chain("billing", 60))
    assert (await capacity.room(), capacity.is_paused) == (11, False)
    await scoring.accept(*of_chain("kubernetes", 45))
    assert await capacity.room() == 6
    with structlog.testing.capture_logs() as logged:
        await scoring.accept(*[session_completed(f"more-{n}", chain_id="billing") for n in range(11)])
        assert (await capacity.room(), capacity.is_paused) == (0, True)
        assert paused_by() == {"pending": 0, "held": 1}
        await limits.resume("billing", None)
        assert (await capacity.room(), paused_by()) == (0, {"pending": 1, "held": 0})
        await scoring.claim(100)
        assert (await capacity.room(), capacity.is_paused) == (35, False)

    assert [(line["event"], line["bound"], line["due"]) for line in logged if "bound" in line] == [
        ("intake.paused", "held", 71),
        ("intake.paused", "pending", 116),
        ("intake.resumed", "held", 0),
        ("intake.resumed", "pending", 16),
    ]
