"""What a conversation drops when the window is full, and how a cut answer is repeated."""

import pytest

from scripted import CUT, ScriptedJudge, answer
from tarsy_scoring.errors import ContextTooLong, JudgeRejectedRequest, JudgeUnavailable, Unscorable
from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.verdict import Message

OPENING = [Message("system", "Judge."), Message("user", "The evidence.")]
FULL = ContextTooLong("the window is full")


def said(*texts: str) -> list[Message]:
    """Messages that alternate between reply and question."""
    return [Message("user" if n % 2 else "assistant", text) for n, text in enumerate(texts)]


async def conversing(judge: ScriptedJudge, *prompts: str) -> Conversation:
    """A conversation in which the judge has answered the analysis and these prompts."""
    conversation = Conversation(judge, OPENING)
    await conversation.say("analysis")
    for prompt in prompts:
        await conversation.say("reminder", prompt)
    return conversation


async def test_a_full_window_keeps_the_last_reply_alone() -> None:
    """The opening stays; dropped replies stay dropped, and the conversation grows again from there."""
    judge = ScriptedJudge(answer("A1"), answer("A2"), answer("A3"), FULL, answer("A4"), answer("A5"))
    conversation = await conversing(judge, "R1", "R2", "R3")

    await conversation.say("missing_tools", "F")

    assert judge.conversations[3:] == [
        [*OPENING, *said("A1", "R1", "A2", "R2", "A3", "R3")],
        [*OPENING, *said("A3", "R3")],
        [*OPENING, *said("A3", "R3", "A4", "F")],
    ]


@pytest.mark.parametrize("replies", [0, 1])
async def test_context_too_long_is_raised_where_no_reply_can_be_dropped(replies: int) -> None:
    judge = ScriptedJudge(*[answer("A1")] * replies, FULL)

    with pytest.raises(ContextTooLong):
        await conversing(judge, "R1")

    assert len(judge.kinds) == replies + 1


async def test_a_turn_that_fails_leaves_the_conversation_as_it_was() -> None:
    judge = ScriptedJudge(answer("A1"), answer("A2"), FULL, JudgeUnavailable("away"), answer("A3"))
    conversation = await conversing(judge, "R1")
    with pytest.raises(JudgeUnavailable):
        await conversation.say("repair", "R2")

    await conversation.say("missing_tools", "F")

    assert judge.conversations[-1] == [*OPENING, *said("A1", "R1", "A2", "F")]


async def test_an_endpoint_that_takes_no_larger_limit_leaves_the_answer_cut() -> None:
    judge = ScriptedJudge(CUT, JudgeRejectedRequest("400"))

    with pytest.raises(Unscorable, match="raise it to the maximum of the model"):
        await conversing(judge)

    assert judge.factors == [1, 2]
