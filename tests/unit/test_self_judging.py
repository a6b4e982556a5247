"""The warning at start: a judge that also works as an agent."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from attempting import a_timeline
from fakes import FakeSessions
from tarsy_scoring.app import SESSIONS_LOOKED_AT, warn_of_self_judging
from tarsy_scoring.errors import SessionNotFound, TimelineUnavailable
from tarsy_scoring.settings import Config, ProviderSettings, Settings
from tarsy_scoring.timeline.model import Timeline

NOW = datetime.now(UTC)


def worked_by(*models: str, ended: datetime = NOW) -> Timeline:
    plain = a_timeline(completed_at=ended)
    stage = plain.stages[0]
    return replace(plain, stages=(replace(stage, executions=(replace(stage.executions[0], model_names=models),)),))


def judged_by(**models: str) -> Settings:
    return Settings(config=Config(providers={name: ProviderSettings(model=model) for name, model in models.items()}))


async def warned(settings: Settings, sessions: FakeSessions) -> list[tuple[Any, Any]]:
    with capture_logs() as lines:
        await warn_of_self_judging(settings, sessions)
    return [(line["provider"], line["model"]) for line in lines if line["event"] == "judge.self_judged"]


async def test_the_judge_that_is_an_agent_is_named() -> None:
    """Once per provider, and only that one, however the model is spelt."""
    settings = judged_by(main="openai/gpt-4.1", spare="other-model")

    assert await warned(settings, FakeSessions(a=worked_by("x"), b=worked_by("gpt-4.1-2025-04-14"))) == [
        ("main", "openai/gpt-4.1")
    ]


async def test_a_judge_of_its_own_is_no_news() -> None:
    """No warning without a reason."""
    assert await warned(judged_by(main="judge-1"), FakeSessions(a=worked_by("gpt-4.1"))) == []


async def test_sessions_of_long_ago_do_not_count() -> None:
    """What worked last year may have been replaced."""
    old = worked_by("judge-1", ended=NOW - timedelta(days=60))

    assert await warned(judged_by(main="judge-1"), FakeSessions(a=old)) == []


async def test_only_some_sessions_are_read() -> None:
    """A start does not read a whole database."""

    class Counting(FakeSessions):
        read = 0

        async def fetch_timeline(self, session_id: str) -> Timeline:
            self.read += 1
            return await super().fetch_timeline(session_id)

    source = Counting(**{f"s{n}": worked_by("x") for n in range(3 * SESSIONS_LOOKED_AT)})

    await warned(judged_by(main="judge-1"), source)

    assert source.read == SESSIONS_LOOKED_AT


@pytest.mark.parametrize("error", [TimelineUnavailable("away"), SessionNotFound("gone")], ids=["away", "gone"])
async def test_a_source_that_cannot_be_read_is_no_reason_to_complain(error: Exception) -> None:
    """What was read before it counts; the worker goes on either way."""

    class Breaking(FakeSessions):
        async def fetch_timeline(self, session_id: str) -> Timeline:
            if session_id == "b":
                raise error
            return await super().fetch_timeline(session_id)

    source = Breaking(a=worked_by("judge-1"), b=worked_by("x"))

    assert await warned(judged_by(main="judge-1"), source) == [("main", "judge-1")]
