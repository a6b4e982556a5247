"""When so many messages are invalid that their topic stops."""

import pytest

from tarsy_scoring.dead_letters.limit import DeadLetterLimit


@pytest.mark.parametrize(
    ("messages", "stops_at"),
    [
        pytest.param("x" * 10, 5, id="the-streak-is-exceeded-by-the-next-message"),
        pytest.param("xxxx." * 19, None, id="a-valid-message-ends-a-streak"),
        pytest.param("xxxx." * 40, 101, id="a-hundred-messages-have-a-share"),
        pytest.param("xx..." * 400, None, id="within-the-share"),
        pytest.param("." * 1_000 + "xxxx." * 300, 1_626, id="the-share-is-of-the-last-thousand"),
    ],
)
def test_a_topic_stops_at_the_message_that_exceeds_a_limit(messages: str, stops_at: int | None) -> None:
    limit = DeadLetterLimit(max_share=0.5, max_streak=4 if stops_at == 5 else 5)
    exceeding = [n for n, message in enumerate(messages, 1) if limit.count([message == "x"]) is not None]

    assert (exceeding or [None])[0] == stops_at


def test_a_topic_at_fault_costs_one_take_per_pause() -> None:
    """Each pause is twice as long, up to 15 minutes, until a hundred messages are within the limits."""
    now_s, invalid, valid, pauses = 0.0, [True] * 500, [False] * 100, []
    limit = DeadLetterLimit(max_share=0.5, max_streak=100, clock=lambda: now_s)

    def next_pause(*takes: list[bool]) -> float:
        """Length of the pause behind these takes, the last of which exceeds a limit."""
        nonlocal now_s
        *within, last = takes
        assert [limit.count(take) for take in within] == [None] * len(within)
        assert limit.count(last) is not None
        began_s = now_s
        while limit.excess is not None:
            now_s += 1
        return now_s - began_s

    pauses = [next_pause(invalid) for _ in range(7)]
    assert pauses == [30, 60, 120, 240, 480, 900, 900]
    assert limit.count([True] * 20) is None, "the count begins again"
    assert next_pause(valid[:79], invalid) == 900
    assert next_pause(valid, invalid) == 30


def test_a_take_of_valid_messages_pauses_no_topic() -> None:
    """Before it there were too few messages for a share."""
    limit = DeadLetterLimit(0.5, 1_000)
    assert limit.count([True] * 90) is None
    assert limit.count([False] * 20) is None
    assert limit.count([True]) is not None
