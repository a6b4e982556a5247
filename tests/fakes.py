"""Fakes at the outermost edge: a judge with prepared answers, and a timeline source in memory."""

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

from tarsy_scoring.errors import SessionNotFound
from tarsy_scoring.judge.verdict import Message, Question, Turn, TurnKind
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.timeline.model import FoundSession, Timeline

Answer = str | Exception | Callable[[list[Message]], str]

ANALYSIS = """The investigation read the logs (E3) before it concluded.

Logical Flow: 15/25
Consistency: 17/25
Tool Relevance: 14/25
Synthesis Quality: 16/25

Outcome: correct

62"""
MISSING_TOOLS = "1. **read-file**: it would have shown the configuration itself."


class FakeJudge:
    """
    A stand-in for `JudgeClient` that gives its answers in order and fails the test when none is left.

    `asked` holds the kind and the messages of every call.
    """

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[TurnKind, list[Message]]] = []
        self.finish_reason = "stop"

    provider = "default"

    async def ask(self, question: Question, **_: Any) -> Turn:
        kind, messages = question.kind, question.messages
        self.asked.append((kind, list(messages)))
        assert self._answers, f"the judge was asked once more than the test foresaw ({kind})"
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Turn(
            kind=kind,
            reply=answer(list(messages)) if callable(answer) else answer,
            provider=self.provider,
            model_requested="judge-1",
            model_served="judge-1",
            input_tokens=10_000,
            cached_input_tokens=0,
            output_tokens=100,
            cost_usd=0.01,
            latency_ms=5,
            finish_reason=self.finish_reason,
        )

    async def close(self) -> None:
        """Nothing to give back."""

    @property
    def kinds(self) -> list[TurnKind]:
        return [kind for kind, _ in self.asked]


class FakeSessions:
    """A timeline source in memory; an exception in place of a timeline is raised."""

    def __init__(self, *, may_change: bool = True, **sessions: Timeline | Exception) -> None:
        self.may_change = may_change
        self.reads_at_once = 16
        self.sessions = sessions

    async def fetch_timeline(self, session_id: str) -> Timeline:
        found = self.sessions.get(session_id)
        if found is None:
            raise SessionNotFound(f"there is no session {session_id}")
        if isinstance(found, Exception):
            raise found
        return found

    async def find_session(self, session_id: str) -> FoundSession:
        found = await self.fetch_timeline(session_id)
        return FoundSession(session_id, found.chain_id, found.status, found.completed_at)

    async def finished_sessions(self, since: datetime) -> AsyncIterator[FoundSession]:
        for session_id, found in self.sessions.items():
            if isinstance(found, Timeline) and found.completed_at is not None and found.completed_at >= since:
                yield FoundSession(session_id, found.chain_id, found.status, found.completed_at)

    async def check(self) -> None:
        """Answers always: only single sessions cannot be read."""

    async def recent_agent_models(self) -> frozenset[str]:
        timelines = [t for t in self.sessions.values() if isinstance(t, Timeline)]
        return frozenset(name for timeline in timelines for name in timeline.agent_models)

    async def close(self) -> None:
        """Nothing to give back."""


class UnaskedInbox:
    """A stand-in for `Inbox` whose database is never asked."""

    database = Database("postgresql://nowhere/scores", "public", pool_size=1)


class Room:
    """A stand-in for `Capacity` of intake that always has room."""

    is_paused = False

    async def room(self) -> int:
        return 1000

    def use(self, requests: int) -> None:
        """Take the requests."""
