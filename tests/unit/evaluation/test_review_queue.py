"""The random share speaks for all candidates, the informative one for itself, and every chance is known."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import pytest
from benchmarks.labelling import queue_estimates

from tarsy_scoring.statistics.agreement import DEFAULT_BANDS, Band
from tarsy_scoring.statistics.sampling import Candidate, Pick, Reason, pick_for_review, reasons_to_review

FLAGGED = Candidate("flagged", 62, flags=("ungrounded",))
PLAIN = [Candidate(f"plain-{i}", 60 + i / 10) for i in range(20)]  # 10 to 11.9 points above an edge


def pick(candidates: Sequence[Candidate], count: int, seed: int = 1, **options: float) -> list[Pick]:
    return pick_for_review(candidates, count, DEFAULT_BANDS, seed=seed, **options)


# --- what is picked ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidate", "reasons"),
    [
        pytest.param(Candidate("s", 62), (), id="nothing"),
        pytest.param(Candidate("s", 62, spread=8), (), id="samples-near-each-other"),
        pytest.param(Candidate("s", 62, spread=9), ("samples apart",), id="samples-apart"),
        pytest.param(Candidate("s", 53), ("band edge",), id="just-above-an-edge"),
        pytest.param(Candidate("s", 72), ("band edge",), id="just-below-an-edge"),
        pytest.param(Candidate("s", 54), (), id="not-quite-at-an-edge"),
        pytest.param(Candidate("s", 1), (), id="the-lowest-end-is-no-edge"),
        pytest.param(
            Candidate("s", 75, ("ungrounded",), 20, ("outcome",)),
            ("contradiction", "flag", "samples apart", "band edge"),
            id="all",
        ),
    ],
)
def test_four_things_make_a_score_informative(candidate: Candidate, reasons: tuple[Reason, ...]) -> None:
    """Contradictions, flags, samples more than 8 apart, and 3 points to an edge between bands."""
    assert reasons_to_review(candidate, DEFAULT_BANDS) == reasons


def test_criteria_with_one_band_have_no_edge() -> None:
    """And a queue all the same."""
    [found] = pick_for_review([Candidate("s", 50)], 1, [Band("all", 0, 100)], seed=1)

    assert found.reasons == ()


def test_the_informative_share_has_the_most_reasons_first() -> None:
    """Then samples that are farther apart, then the nearer edge; what was drawn by chance already is passed over."""
    ranked = [
        Candidate("two", 62, ("ungrounded",), 9),
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
    """In whatever order candidates come; another seed draws others."""
    assert pick(PLAIN, 6) == pick(PLAIN[::-1], 6)
    assert pick(PLAIN, 6) != pick(PLAIN, 6, seed=2)


def test_the_queue_is_in_random_order() -> None:
    """People who stop early stop by chance, not after the random share."""
    firsts = Counter(pick(PLAIN, 6, seed)[0].is_random for seed in range(200))

    assert 70 <= firsts[True] <= 130  # four standard deviations around 100


@pytest.mark.parametrize(
    ("count", "share", "drawn", "in_all"),
    [(5, 0.5, 3, 5), (4, 0.25, 1, 4), (4, 1.0, 4, 4), (99, 0.5, 11, 21), (0, 0.5, 0, 0)],
    ids=["rounded-up", "a-quarter", "all-random", "more-than-there-are", "none"],
)
def test_as_many_as_asked_for_are_picked(count: int, share: float, drawn: int, in_all: int) -> None:
    """Nothing twice, and at least one by chance."""
    found = pick([FLAGGED, *PLAIN], count, random_share=share)

    assert len({p.score_id for p in found}) == len(found) == in_all
    assert sum(p.is_random for p in found) == drawn


def test_no_candidate_no_pick() -> None:
    """An empty queue."""
    assert pick([], 5) == []


@pytest.mark.parametrize(
    ("candidates", "count", "share", "reason"),
    [
        (PLAIN, 5, 0.0, "random share"),
        (PLAIN, 5, 1.1, "random share"),
        (PLAIN, -1, 0.5, "-1 scores"),
        ([FLAGGED, FLAGGED], 1, 0.5, "twice"),
    ],
    ids=["no-random-share", "more-than-all", "negative", "twice"],
)
def test_what_cannot_be_picked_is_refused(
    candidates: Sequence[Candidate], count: int, share: float, reason: str
) -> None:
    """Without a random share nothing could be estimated."""
    with pytest.raises(ValueError, match=reason):
        pick(candidates, count, random_share=share)


# --- chances -------------------------------------------------------------------------------------------


def test_chances_are_those_of_all_possible_draws() -> None:
    """Two of six by chance, then the two first of the rest: counted over all 15 draws."""
    candidates = [Candidate(str(place), 51 + place) for place in range(6)]
    expected = Counter[str]()
    for drawn in combinations(range(6), 2):
        rest = [place for place in range(6) if place not in drawn]
        expected.update(map(str, (*drawn, *rest[:2])))

    found = {p.score_id: p.inclusion_probability for seed in range(60) for p in pick(candidates, 4, seed)}

    assert found == {name: pytest.approx(times / 15) for name, times in expected.items()}
    assert sum(found.values()) == pytest.approx(4)


def test_everything_is_drawn_as_often_as_it_says() -> None:
    """The random share takes every candidate alike, within four standard deviations of 2,000 draws."""
    runs, candidates = 2_000, [FLAGGED, *PLAIN[:9]]
    drawn, picked, chances = Counter[str](), Counter[str](), dict[str, float]()
    for seed in range(runs):
        for p in pick(candidates, 4, seed):
            drawn[p.score_id] += p.is_random
            picked[p.score_id] += 1
            chances[p.score_id] = p.inclusion_probability

    assert len(chances) == 10
    for name, chance in chances.items():
        assert drawn[name] == pytest.approx(0.2 * runs, abs=4 * (0.2 * 0.8 * runs) ** 0.5)
        assert picked[name] == pytest.approx(chance * runs, abs=4 * (chance * (1 - chance) * runs) ** 0.5)
    assert chances["flagged"] == 1


def test_of_many_candidates_the_ordinary_are_only_drawn() -> None:
    """A chance that is neither rounded away nor long in coming."""
    many = [Candidate(f"{i:06}", 62) for i in range(20_000)]

    found = pick(many, 400)

    assert {p.inclusion_probability for p in found if p.is_random and p.score_id > "000500"} == {200 / 20_000}


def test_all_candidates_are_certain() -> None:
    """When nothing is left out, no label stands for another."""
    assert {p.inclusion_probability for p in pick(PLAIN, 20)} == {1.0}
    assert {p.inclusion_probability for p in pick(PLAIN, 20, random_share=1)} == {1.0}


# --- what it is for ------------------------------------------------------------------------------------


def test_the_random_share_is_unbiased_where_the_informative_is_not() -> None:
    """
    The share of scores in another band than their label, 40 of 300, 400 queues.

    The mean of 400 estimates is within three of its standard errors; the informative share alone tells of twice as
    many errors as there are. All of them weighed are unbiased too, and no less exact.
    """
    runs = 400

    found = queue_estimates(300, 40, runs, seed=1)

    for values in (found.random_share, found.all_weighed):
        assert abs(found.bias(values)) < 3 * found.error(values) / runs**0.5
    assert found.bias(found.informative_share) > 10 * found.error(found.random_share) / runs**0.5
    assert found.error(found.all_weighed) < found.error(found.random_share)
