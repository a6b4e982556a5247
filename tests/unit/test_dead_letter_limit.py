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
    exceeding = [n for n, message in enumerate(messages, 1) if limit.count(is_invalid=message == "x") is not None]

    assert (exceeding or [None])[0] == stops_at
