"""
A conversation with the judge that only grows, so that the provider's prompt cache serves the evidence to every turn.
"""

from tarsy_scoring.errors import AnswerCut, ContentFiltered, EmptyAnswer, Refused
from tarsy_scoring.judge.verdict import Ask, Message, ReplyFormat, Turn, TurnKind

_NO_TEXT = "(no text)"  # an assistant message without content is refused by many endpoints
_ENLARGED = 2  # times the reply limit, for the one repetition of a cut answer


class Conversation:
    """
    The messages so far. They grow only by answers that are usable and by what was asked for them.

    A turn that fails leaves them as they were, so whatever is asked next has a prefix that was sent before.

    Args:
        reply_format: Of every answer; None for text.
    """

    def __init__(self, ask: Ask, opening: list[Message], reply_format: ReplyFormat | None = None) -> None:
        self._ask = ask
        self._messages = opening
        self._format = reply_format

    async def say(self, kind: TurnKind, prompt: str | None = None) -> Turn:
        """
        Ask with `prompt` as the next message; None where the opening asks already.

        Returns:
            A whole answer: with text, or with tool calls alone.

        Raises:
            Refused, ContentFiltered, AnswerCut, EmptyAnswer: The answer is not one.
            RetryLater, WaitFor, Unscorable: As `ask` raises them.
        """
        messages = [*self._messages, Message("user", prompt)] if prompt else self._messages
        turn = await self._ask(kind, list(messages), reply_format=self._format)
        if _is_cut(turn):
            turn = await self._ask(kind, list(messages), reply_limit_factor=_ENLARGED, reply_format=self._format)
        _require_answer(turn)
        self._messages = [*messages, Message("assistant", turn.reply if turn.reply.strip() else _NO_TEXT)]
        return turn


def _is_cut(turn: Turn) -> bool:
    return turn.finish_reason == "length" and not turn.refusal


def _require_answer(turn: Turn) -> None:
    who = f"the judge {turn.model_requested!r} at {turn.provider!r}"
    if turn.refusal or turn.finish_reason == "refusal":
        raise Refused(f"{who} refused to answer; another provider for this chain may accept")
    if turn.finish_reason == "content_filter":
        raise ContentFiltered(f"the filter of {turn.provider!r} withheld the answer; another provider may not")
    if turn.finish_reason == "length":
        raise AnswerCut(
            f"{who} hit the reply limit twice, the second time at {_ENLARGED} times max_reply_tokens; raise it"
        )
    if not turn.reply.strip() and not turn.has_tool_calls:
        raise EmptyAnswer(f"{who} answered nothing")
