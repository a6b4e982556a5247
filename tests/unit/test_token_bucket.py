"""Laws of the token bucket."""

from tarsy_scoring.limits.token_bucket import TokenBucket


def test_a_bucket_allows_a_burst_and_then_an_even_rate() -> None:
    bucket = TokenBucket(per_s=0.5, burst=2, now=100.0)
    assert [bucket.take(100.0) for _ in range(3)] == [0.0, 0.0, 2.0]
    assert bucket.take(101.0) == 1.0  # a refusal takes nothing
    assert bucket.take(102.0) == 0.0


def test_an_idle_bucket_saves_no_more_than_the_burst() -> None:
    bucket = TokenBucket(per_s=1000.0, burst=2, now=0.0)
    assert [bucket.take(1e6) == 0.0 for _ in range(3)] == [True, True, False]
