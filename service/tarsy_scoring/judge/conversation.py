"""
A conversation with the judge. It only grows, so that the provider's prompt cache serves the evidence to every
turn.
"""

from dataclasses import replace

from tarsy_scoring import errors
from tarsy_scoring.judge.verdict import Ask, IsFinal, Message, Question, ReplyFormat, Turn, TurnKind

_NO_TEXT = "(no text)"  # an assistant message without content is refused by many endpoints
_ENLARGED = 2  # times the reply limit, when a cut answer is asked for again


class Conversation:
    """
    The opening and the exchanges since. It grows only by usable answers and their questions.

    A turn that fails leaves it unchanged, so that the next question's prefix was sent before. When the
    window can no longer hold it all, replies before the last one are dropped for good; the opening with
    the evidence stays byte for byte. A cancelled turn leaves it unchanged as well.

    Args:
        reply_format: The JSON that every answer must be; None for text.
        max_reminders: How often a reply that does not follow the form may be asked for again.
        is_final: Whether a failed optional turn is given up; other errors are raised.
    """

    def __init__(
        self,
        ask: Ask,
        opening: list[Message],
        reply_format: ReplyFormat | None = None,
        *,
        max_reminders: int = 2,
        is_final: IsFinal = lambda _error: True,
    ) -> None:
        self.max_reminders = max_reminders
        self._is_final = is_final
        self._ask = ask
        self._opening = opening
        self._exchanges: list[Message] = []  # begins and ends with a reply
        self._format = reply_format

    async def say(self, kind: TurnKind, prompt: str | None = None) -> Turn:
        """
        Ask with `prompt` as the next message; None asks the opening's question.

        Returns:
            A whole answer with text, or with tool calls only.

        Raises:
            Refused, ContentFiltered, Unscorable: The answer is not usable.
            ContextTooLong: Not even the opening and the last reply fit.
            RetryLater, WaitFor, Unscorable, LeaseLost: As `ask` raises them.
        """
        asked, kept = [Message("user", prompt)] if prompt else [], self._exchanges
        try:
            turn = await self._ask_whole(kind, [*self._opening, *kept, *asked])
        except errors.ContextTooLong:
            kept = self._exchanges[-1:]
            if kept == self._exchanges:
                raise
            turn = await self._ask_whole(kind, [*self._opening, *kept, *asked])
        _require_answer(turn)
        self._exchanges = [
            *kept,
            *asked,
            Message("assistant", turn.answer if turn.answer.strip() else _NO_TEXT),
        ]
        return turn

    async def say_optional(self, kind: TurnKind, prompt: str) -> Turn | None:
        """
        Ask as `say` does; None where the turn fails for good.

        Raises:
            RetryLater, WaitFor: Another attempt may succeed.
            LeaseLost: The score belongs to another worker now.
        """
        try:
            return await self.say(kind, prompt)
        except errors.AttemptError as error:
            if not self._is_final(error):
                raise
            return None

    async def _ask_whole(self, kind: TurnKind, messages: list[Message]) -> Turn:
        """Ask, and ask the same question once more with a larger reply limit where the answer is cut."""
        question = Question(kind, messages, self._format)
        turn = await self._ask(question)
        if turn.finish_reason != "length" or turn.refusal:
            return turn
        try:
            return await self._ask(replace(question, reply_limit_factor=_ENLARGED))
        except errors.JudgeRejectedRequest as error:
            # Many endpoints refuse a limit above the model's maximum.
            raise errors.Unscorable(
                f"{turn.judge} hit the reply limit, and the endpoint refuses {_ENLARGED} times max_reply_tokens; "
                "raise it to the maximum of the model",
                "answer_cut",
            ) from error


def _require_answer(turn: Turn) -> None:
    if turn.refusal or turn.finish_reason == "refusal":
        raise errors.Refused(f"{turn.judge} refused to answer; another provider for this chain may accept")
    if turn.finish_reason == "content_filter":
        raise errors.ContentFiltered(
            f"the filter of {turn.provider!r} withheld the answer; another provider may not"
        )
    if turn.finish_reason == "length":
        raise errors.Unscorable(
            f"{turn.judge} hit the reply limit twice, "
            f"the second time at up to {_ENLARGED} times max_reply_tokens; raise it",
            "answer_cut",
        )
    if not turn.answer.strip() and not turn.has_tool_calls:
        raise errors.Unscorable(f"{turn.judge} sent an empty answer", "empty_answer")
