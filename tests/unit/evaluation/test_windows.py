"""Rolling windows are sums over panes: the same as counting each window by itself, in whatever order scores come."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tarsy_scoring.signals.windows import (
    HOUR_S,
    KEPT_S,
    LONG,
    MICRO,
    SHORT,
    EndedScore,
    Length,
    RollingWindows,
    kept_from,
    microseconds,
    nano_usd,
)

NOON_S = int(datetime(2026, 3, 10, 12, tzinfo=UTC).timestamp())


def ended(at_s: float, total: int | None = 80, **more: Any) -> EndedScore:
    return EndedScore(round(at_s * MICRO), total, **more)


def counting(*scores: EndedScore, threshold: float = 50) -> RollingWindows:
    """Windows that have counted these, all of them published."""
    windows = RollingWindows(threshold)
    for number, score in enumerate(scores):
        windows.count(b"row-%d" % number, score)
    return windows


def published(windows: RollingWindows, kept_from_s: int = 0) -> list[tuple[str, str, int]]:
    """End and count of both windows of each message."""
    messages = list(windows.take_unpublished(kept_from_s))
    return [(m["1h"]["end"][11:16], m["24h"]["end"][11:16], m["1h"]["scores"]) for m in messages]


def by_hand(scores: list[EndedScore], length: Length, end_s: int, threshold: float) -> dict[str, Any]:
    """One window counted by itself."""
    inside = [s for s in scores if (end_s - length.length_s) * MICRO <= s.at_us < end_s * MICRO]
    completed = [s for s in inside if s.error_kind is None]
    totals = [s.total for s in completed if s.total is not None]
    costs = [s.cost_nano_usd for s in completed if s.cost_nano_usd is not None]
    return {
        "start": datetime.fromtimestamp(end_s - length.length_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "end": datetime.fromtimestamp(end_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "scores": len(completed),
        "scored": len(totals),
        "mean": sum(totals) / len(totals) if totals else None,
        "under_threshold": sum(t < threshold for t in totals),
        "threshold": threshold,
        "share_under_threshold": sum(t < threshold for t in totals) / len(totals) if totals else None,
        "failures": dict(Counter(s.error_kind for s in inside if s.error_kind is not None)),
        "failure_tags": dict(Counter(t for s in completed for t in s.failure_tags)),
        "cost_usd": sum(costs) / 1e9 if costs else None,
    }


@pytest.mark.parametrize("seed", range(20))
def test_every_window_is_what_counting_it_by_itself_gives(seed: int) -> None:
    """Of each length, at every hop, over scores in any order; those on a border belong to the later window."""
    chance = random.Random(seed)
    scores = [
        EndedScore(
            chance.choice((NOON_S * MICRO, (NOON_S + 300) * MICRO - 1, (NOON_S - chance.randrange(90_000)) * MICRO)),
            chance.choice((None, 49, 50, *range(101))),
            None,
            tuple(chance.sample(["a", "b"], chance.randrange(3))),
            chance.choice((None, chance.randrange(10**9))),
        )
        for _ in range(80)
    ] + [ended(NOON_S - chance.randrange(90_000), None, error_kind=chance.choice("xy")) for _ in range(20)]
    chance.shuffle(scores)
    windows = counting(*scores)

    for length in (SHORT, LONG):
        for end_s in range(NOON_S - 100_800, NOON_S + 100_800, length.hop_s):
            assert windows.window(length, end_s) == by_hand(scores, length, end_s, 50)


def test_the_newest_windows_are_those_that_close_first() -> None:
    """They reach back the farthest: what the last hour was like, and not what the last minute was."""
    windows = counting(ended(NOON_S + 420))
    windows.touch_newest()

    assert published(windows) == [("12:10", "13:00", 1)]


@pytest.mark.parametrize(
    ("at_s", "end"),
    [
        pytest.param(NOON_S, "12:05", id="begins-a-hop"),
        pytest.param(NOON_S + 299.999999, "12:05", id="ends-a-hop"),
        pytest.param(NOON_S + 300, "12:10", id="begins-the-next"),
    ],
)
def test_windows_are_half_open(at_s: float, end: str) -> None:
    """A moment on a border belongs to what begins there."""
    windows = counting(ended(at_s))
    windows.touch_newest()

    assert published(windows)[0][0] == end


def test_the_last_figures_of_a_window_are_published_before_the_next_one() -> None:
    """When a score moves the windows on, what came since the last publication is not lost to those that closed."""
    windows = counting(ended(NOON_S))
    windows.touch_newest()
    windows.count(b"next", ended(NOON_S + 600))
    windows.touch_newest()

    assert published(windows) == [("12:05", "13:00", 1), ("12:15", "13:00", 2)]


def test_a_late_score_corrects_every_window_it_is_in() -> None:
    """All that hold it up to the newest are published again, and the newest comes last, as that is what stays."""
    windows = counting(ended(NOON_S))
    windows.touch_newest()
    published(windows)
    late = ended(NOON_S - 600)

    windows.count(b"late", late)
    windows.touch(late.at_us)

    assert published(windows) == [("11:55", "12:00", 1), ("12:00", "12:00", 1), ("12:05", "13:00", 2)]


def test_a_score_that_is_too_late_for_the_newest_windows_leaves_them_last() -> None:
    """Compaction keeps the last message of a chain: that is never a window of the past."""
    windows = counting(ended(NOON_S))
    late = ended(NOON_S - 30 * HOUR_S)

    windows.count(b"late", late)
    windows.touch(late.at_us)

    ends = [end for end, _, _ in published(windows)]
    assert len(ends) == 12 + 23 + 1
    assert ends[-1] == "12:05"


def test_a_repeat_has_its_windows_published_again() -> None:
    """Whoever counted it may have been killed before it published."""
    windows = counting(ended(NOON_S))

    windows.touch(NOON_S * MICRO)
    first, nothing = published(windows), published(windows)
    windows.touch(NOON_S * MICRO)

    assert first == published(windows) == [("12:05", "13:00", 1)]
    assert nothing == []


def test_windows_with_forgotten_scores_are_not_published() -> None:
    """A window whose beginning is forgotten would say too little."""
    windows = counting(ended(NOON_S - 1))
    windows.touch_newest()
    begins = NOON_S - 24 * HOUR_S

    assert published(windows, begins + HOUR_S) == []
    windows.touch_newest()
    assert published(windows, begins) == [("12:00", "12:00", 1)]


def test_what_is_forgotten_is_in_no_window_and_its_rows_are_told() -> None:
    """In whole hours, from all lengths alike; a chain without scores is nothing."""
    windows = counting(ended(NOON_S - 2 * HOUR_S), ended(NOON_S - 1), ended(NOON_S))

    assert windows.forget(NOON_S + HOUR_S - 1) == [b"row-0", b"row-1"]
    assert windows.window(LONG, NOON_S + HOUR_S)["scores"] == 1
    assert windows.window(SHORT, NOON_S + 300)["scores"] == 1
    assert windows.forget(NOON_S) == []
    assert windows
    assert windows.forget(NOON_S + HOUR_S) == [b"row-2"]
    assert not windows
    windows.touch_newest()
    assert published(windows) == []


def test_a_score_is_kept_for_the_longest_window_and_half_a_day() -> None:
    """Hours are forgotten as a whole; every window that holds a score of half a day ago is whole."""
    now_s = NOON_S + 1234
    half_a_day_ago_s = now_s - 12 * HOUR_S

    assert kept_from(now_s) % HOUR_S == 0
    assert now_s - KEPT_S - HOUR_S < kept_from(now_s) <= now_s - KEPT_S
    assert LONG.end_behind(half_a_day_ago_s) - LONG.length_s >= kept_from(now_s)


def test_a_threshold_is_not_reached_by_what_is_below_it() -> None:
    """The threshold itself passes, as with outcomes; a whole one is written as a whole number."""
    windows = counting(ended(NOON_S, 59), ended(NOON_S, 60), threshold=60.0)

    figures = windows.window(SHORT, NOON_S + 300)
    assert (figures["under_threshold"], repr(figures["threshold"])) == (1, "60")
    assert counting(threshold=62.5).window(SHORT, NOON_S)["threshold"] == 62.5


def test_a_tag_counts_once_per_score() -> None:
    """However often the judge wrote it."""
    windows = counting(ended(NOON_S, failure_tags=("loop", "loop")))

    assert windows.window(SHORT, NOON_S + 300)["failure_tags"] == {"loop": 1}


@pytest.mark.parametrize(
    "score",
    [
        pytest.param(ended(NOON_S, 0, failure_tags=("a", "ü"), cost_nano_usd=0), id="completed"),
        pytest.param(ended(NOON_S, None, error_kind="refused"), id="failed"),
    ],
)
def test_a_row_is_read_as_it_was_written(score: EndedScore) -> None:
    """What is restored from the changelog counts like what came."""
    assert EndedScore.decode(score.encode()) == score


def test_a_row_that_is_none_of_ours_is_refused() -> None:
    """A changelog that others wrote to must not be counted."""
    with pytest.raises(ValueError, match="unpack"):
        EndedScore.decode(b"[1, 2]")


@pytest.mark.parametrize(
    ("cost_usd", "nano"),
    [
        pytest.param(None, None, id="unknown"),
        pytest.param(0.1, 100_000_000, id="no-binary-fraction"),
        pytest.param(1e-9, 1, id="smallest"),
        pytest.param(5e-10, 1, id="half-up"),
        pytest.param(4.9e-10, 0, id="below-half"),
        pytest.param(12345.678901234, 12_345_678_901_234, id="large"),
    ],
)
def test_money_is_rounded_as_postgresql_does(cost_usd: float | None, nano: int | None) -> None:
    """By the decimal digits that JSON has, a half away from zero."""
    assert nano_usd(cost_usd) == nano


def test_moments_are_exact_to_the_microsecond() -> None:
    """A float of seconds would lose some."""
    at = datetime(2026, 3, 10, 12, 0, 0, 999_999, tzinfo=UTC)

    assert microseconds(at) - microseconds(at - timedelta(microseconds=1)) == 1
    assert microseconds(at) == NOON_S * MICRO + 999_999
