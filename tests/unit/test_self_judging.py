"""The warning at the start about a judge that also works as an agent."""

from dataclasses import replace
from typing import Any

from structlog.testing import capture_logs

from attempting import a_timeline
from fakes import FakeSessions
from tarsy_scoring.commands.worker import warn_of_self_judging
from tarsy_scoring.config.chains import Config, ProviderSettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import TimelineUnavailable
from tarsy_scoring.timeline.model import Timeline


def worked_by(*models: str) -> Timeline:
    plain = a_timeline()
    stage = plain.stages[0]
    return replace(plain, stages=(replace(stage, executions=(replace(stage.executions[0], model_names=models),)),))


def judged_by(**models: str) -> Settings:
    return Settings(config=Config(providers={name: ProviderSettings(model=model) for name, model in models.items()}))


async def warned(settings: Settings, sessions: FakeSessions) -> list[tuple[Any, Any]]:
    with capture_logs() as lines:
        await warn_of_self_judging(settings, sessions)
    return [(line["provider"], line["model"]) for line in lines if line["event"] == "judge.self_judged"]


async def test_the_judge_that_is_an_agent_is_named() -> None:
    """Once per provider, whatever the spelling of the model; other providers are not named."""
    settings = judged_by(main="openai/gpt-4.1", spare="other-model")

    assert await warned(settings, FakeSessions(a=worked_by("x"), b=worked_by("gpt-4.1-2025-04-14"))) == [
        ("main", "openai/gpt-4.1")
    ]


async def test_a_judge_that_is_no_agent_gives_no_warning() -> None:
    assert await warned(judged_by(main="judge-1"), FakeSessions(a=worked_by("gpt-4.1"))) == []


async def test_a_source_that_cannot_be_read_gives_no_warning() -> None:
    """The worker goes on."""

    class Away(FakeSessions):
        async def recent_agent_models(self) -> frozenset[str]:
            raise TimelineUnavailable("away")

    assert await warned(judged_by(main="judge-1"), Away(a=worked_by("judge-1"))) == []
