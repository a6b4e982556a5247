"""
A strategy's contract: how the judge is asked and how replies become a verdict.

A strategy is one class in a file in this package and one entry in `strategies.STRATEGIES`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.definition import Definition
from tarsy_scoring.judge.verdict import ReplyFormat, TurnKind, Verdict


class Strategy(ABC):
    """
    One way to ask the judge. Stateless: one instance serves all criteria and all sessions at once.

    The same replies must lead to the same calls, because an interrupted attempt replays stored
    turns.
    """

    name: str
    """The value for the key `strategy` in a criteria file."""

    def check(self, definition: Definition) -> None:
        """
        Check that a criteria file has the keys that the strategy needs, and none that contradict it.

        Raises:
            ValueError: A key is missing or contradicts the strategy. The message names the key, so that the
                line in the file can be found.
        """
        if definition.rubric:
            raise ValueError(f"the strategy {self.name} has no rubric")

    @abstractmethod
    def added_prompts(self, definition: Definition) -> Mapping[str, str]:
        """
        Texts that the judge reads beside the file's prompts, by name.

        They are part of the criteria's hash. `output_schema` replaces `{{OUTPUT_SCHEMA}}`.
        """

    def reply_format(self, definition: Definition) -> ReplyFormat | None:
        """The JSON that every reply to the first question must be; None for text."""
        return None

    @abstractmethod
    async def evaluate(self, conversation: Conversation, definition: Definition, kind: TurnKind) -> Verdict:
        """
        Ask for a total and everything that comes with it. Called once per sample.

        Args:
            conversation: Opened with the criteria's prompts; nothing has been asked yet.
            kind: The kind that the first turn is stored with; it says what the sample is for.

        Raises:
            Unscorable: There is no score; each strategy documents the errors.
            RetryLater, WaitFor: As `Conversation.say` raises them.
        """

    def follow_up_prompt(self, definition: Definition) -> str | None:
        """The question that `follow_up` asks, for cost estimates; None where it asks nothing."""
        return None

    async def follow_up(self, conversation: Conversation, definition: Definition, verdict: Verdict) -> None:  # noqa: B027
        """
        Ask about the verdict that was chosen among the samples, and add the answer to it. Optional.

        Raises:
            RetryLater, WaitFor: Another attempt may succeed.
        """
