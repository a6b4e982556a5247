"""How many workers of a fleet claim for an announced score."""

import random
from collections.abc import Iterator

import pytest

from tarsy_scoring.scoring.claim_backoff import ClaimBackoff

SCORES = 2_000


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    state = random.getstate()
    random.seed(16)
    yield
    random.setstate(state)


def claims_of(fleet: list[ClaimBackoff], announced: int = 1) -> int:
    """Claims after each announcement; the first finds a score, or the first poll if no worker claims."""
    claims = 0
    for _ in range(SCORES):
        reacting = [worker for worker in fleet if worker.reacts(announced)]
        claims += len(reacting)
        found = random.choice(reacting or fleet)
        for worker in {id(w): w for w in (*reacting, found)}.values():
            worker.learn(worker.starts_claim(), int(worker is found))
    return claims


@pytest.mark.parametrize("size", [2, 16, 100])
def test_a_fleet_claims_a_few_times_per_score(size: int) -> None:
    assert claims_of([ClaimBackoff() for _ in range(size)]) < 3 * SCORES


def test_a_lone_worker_claims_for_every_score() -> None:
    assert claims_of([ClaimBackoff()]) == SCORES


def test_many_scores_make_many_workers_claim() -> None:
    fleet = [ClaimBackoff() for _ in range(16)]
    claims_of(fleet)

    assert sum(worker.reacts(1_000) for worker in fleet) == 16


def test_a_worker_whose_poll_finds_a_score_claims_for_every_score_again() -> None:
    worker = ClaimBackoff()
    while worker.share > 0.01:
        assert worker.reacts(1_000)
        worker.learn(worker.starts_claim(), 0)

    worker.learn(worker.starts_claim(), 1)

    assert all(worker.reacts(1) for _ in range(100))
