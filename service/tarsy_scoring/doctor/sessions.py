"""Checks of what a judgement needs: the source of sessions, the write-back, and the judges' models."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

from pydantic import SecretStr

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.doctor.checks import LIMIT_S, Check, Fault, NotChecked
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.judge.ask.client import JudgeClient, create_clients
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.verdict import Message, Question
from tarsy_scoring.postgres.url import place_of
from tarsy_scoring.tarsy.write_back import open_write_back_tarsy
from tarsy_scoring.timeline.sources import open_timeline_source

SINCE = timedelta(days=30)
MOST_SESSIONS = 500
QUESTION = Question("analysis", [Message("user", "Reply with the word ready.")])


def source_checks(settings: Settings) -> list[Check]:
    """The checks of the source."""

    async def source() -> str:
        if settings.timeline_source is None:
            raise NotChecked("SCORING_TIMELINE_SOURCE is not set")
        opened = open_timeline_source(settings)
        try:
            await opened.check()
        finally:
            await opened.close()
        return f"{settings.timeline_source} can be read"

    async def statuses() -> str:
        opened = open_timeline_source(settings)
        found: Counter[str | None] = Counter()
        scored = 0
        try:
            sessions = opened.finished_sessions(datetime.now(UTC) - SINCE)
            async for session in sessions:
                found[session.status] += 1
                scored += session.status in settings.chain(session.chain_id).auto_score_statuses
                if found.total() == MOST_SESSIONS:
                    break
        finally:
            await opened.close()
        if not found:
            return f"no session ended in the last {SINCE.days} days"
        words = ", ".join(f"{status} {count}" for status, count in found.most_common())
        if not scored:
            raise Fault(
                f"no session of the last {SINCE.days} days has a status that is scored: {words}",
                "correct auto_score_statuses of the chains",
            )
        return f"{scored} of {found.total()} sessions have a status that is scored: {words}"

    async def write_back() -> str:
        if not settings.write_back:
            raise NotChecked("SCORING_WRITE_BACK is off")
        tarsy = open_write_back_tarsy(settings)
        try:
            await tarsy.once(lambda c, _: c.execute("SELECT 1"))
        finally:
            await tarsy.close()
        return f"scores can be written to {tarsy.place}"

    return [
        Check("source", source, target=_place_of_source(settings)),
        Check("source-statuses", statuses, ["source"], _place_of_source(settings)),
        Check("write-back", write_back, target=_place_of_tarsy(settings.write_back_database_url)),
    ]


def _place_of_source(settings: Settings) -> str:
    match settings.timeline_source:
        case "tarsy-db":
            return _place_of_tarsy(settings.timeline_database_url)
        case "tarsy-api":
            return f"TARSy's API at {settings.timeline_api_url}"
    return f"the folder {settings.timeline_dir}"


def _place_of_tarsy(url: SecretStr | None) -> str:
    return "TARSy's database" if url is None else f"TARSy's database at {place_of(url.get_secret_value())}"


def judge_checks(settings: Settings, *, with_judge: bool) -> list[Check]:
    """
    The check of the models.

    Args:
        with_judge: Make one short call to the model of each provider; False: the check is skipped.
    """

    async def judge() -> str:
        if not with_judge:
            raise NotChecked("--no-judge: no model was called")
        clients = create_clients(settings)
        try:
            answers = await asyncio.gather(*map(_ask, clients.values()))
        finally:
            for client in clients.values():
                await client.close()
        found = "; ".join(words for words, _ in answers)
        if not all(has_answered for _, has_answered in answers):
            raise Fault(
                found, "check base_url, model and key of each provider that failed, and the network to it"
            )
        return found

    return [Check("judge", judge)]


async def _ask(client: JudgeClient) -> tuple[str, bool]:
    """What came of a call, and whether the model answered."""
    try:
        turn = await client.ask(QUESTION, clock=AttemptClock(LIMIT_S - 1))
    except ScoringError as error:
        return f"{error} ({client.settings.base_url})", False
    model = turn.model_served or turn.model_requested
    return f"{client.provider}: {model} answered in {turn.latency_ms / 1000:.1f} s", True
