"""The random share represents all candidates, the informative share has reasons; probabilities are known."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import pytest

from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band
from tarsy_scoring.statistics.sampling import Candidate, Pick, Reason, pick_for_review, reasons_to_review

FLAGGED = Candidate("flagged", 62, is_flagged=True)
PLAIN = [Candidate(f"plain-{i}", 60 + i / 10) for i in range(20)]  # 10 to 11.9 points above an edge


def pick(candidates: Sequence[Candidate], count: int, seed: int = 1) -> list[Pick]:
    return pick_for_review(candidates, count, DEFAULT_BANDS, seed=seed)


# --- picks ---------------------------------------------------------------------------------------------


def test_five_things_make_a_score_informative() -> None:
    """A second opinion, contradictions, flags, samples more than 8 apart, and at most 3 points to an edge."""
    cases: list[tuple[Candidate, tuple[Reason, ...]]] = [
        (Candidate("s", 62), ()),
        (Candidate("s", 62, spread=8), ()),
        (Candidate("s", 62, spread=9), ("samples apart",)),
        (Candidate("s", 53), ("band edge",)),
        (Candidate("s", 72), ("band edge",)),
        (Candidate("s", 54), ()),
        (Candidate("s", 1), ()),
        (Candidate("s", 1, is_disputed=True), ("second opinion",)),
        (
            Candidate("s", 75, 20, is_flagged=True, is_contradictory=True),
            ("contradiction", "flag", "samples apart", "band edge"),
        ),
    ]

    for candidate, reasons in cases:
        assert reasons_to_review(candidate, DEFAULT_BANDS) == reasons
    assert reasons_to_review(Candidate("s", 50), [Band("all", 0, 100)]) == ()


def test_the_informative_share_has_the_most_reasons_first() -> None:
    """Disputed scores come before all others."""
    ranked = [
        Candidate("disputed", 62, is_disputed=True),
        Candidate("two", 62, 9, is_flagged=True),
        Candidate("apart", 62, spread=20),
        Candidate("less-apart", 62, spread=10),
        Candidate("at-the-edge", 75),
        Candidate("near-the-edge", 73),
        *PLAIN,
    ]
    order = [c.score_id for c in ranked]
    for seed in range(30):
        found = pick(random.Random(seed).sample(ranked, len(ranked)), 8, seed)

        drawn = {p.score_id for p in found if p.is_random}
        informative = {p.score_id for p in found if not p.is_random}
        assert len(drawn) == len(informative) == 4
        assert informative == set([name for name in order if name not in drawn][:4])


def test_the_same_seed_picks_the_same() -> None:
    assert pick(PLAIN, 6) == pick(PLAIN[::-1], 6)
    assert pick(PLAIN, 6) != pick(PLAIN, 6, seed=2)


def test_the_queue_is_in_random_order() -> None:
    firsts = Counter(pick(PLAIN, 6, seed)[0].is_random for seed in range(200))

    assert 70 <= firsts[True] <= 130  # four standard deviations around 100


def test_as_many_as_asked_for_are_picked() -> None:
    """No score is picked twice, and the random share is rounded up."""
    for count, drawn, in_all in ((5, 3, 5), (4, 2, 4), (99, 11, 21), (0, 0, 0)):
        found = pick([FLAGGED, *PLAIN], count)
        assert len({p.score_id for p in found}) == len(found) == in_all
        assert sum(p.is_random for p in found) == drawn
    assert pick([], 5) == []


# --- chances -------------------------------------------------------------------------------------------


def test_chances_are_those_of_all_possible_draws() -> None:
    """Two of six are random, then the first two of the rest are picked: counted over all 15 draws."""
    candidates = [Candidate(str(place), 51 + place) for place in range(6)]
    expected = Counter[str]()
    for drawn in combinations(range(6), 2):
        rest = [place for place in range(6) if place not in drawn]
        expected.update(map(str, (*drawn, *rest[:2])))

    found = {p.score_id: p.inclusion_probability for seed in range(60) for p in pick(candidates, 4, seed)}

    assert found == {name: pytest.approx(times / 15) for name, times in expected.items()}
    assert sum(found.values()) == pytest.approx(4)


def test_a_draw_of_all_candidates_is_certain() -> None:
    assert {p.inclusion_probability for p in pick(PLAIN, 20)} == {1.0}
    assert [p.inclusion_probability for p in pick(PLAIN[:1], 20)] == [1.0]


# --- what it is for ------------------------------------------------------------------------------------
