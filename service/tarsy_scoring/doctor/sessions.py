"""Checks of what a judgement needs: the source of sessions, the write-back, and the judges' models."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.doctor.checks import LIMIT_S, Check, Fault, NotChecked
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.llm import JudgeClient, create_clients
from tarsy_scoring.judge.verdict import Message, Question
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
        Check("source", source),
        Check("source-statuses", statuses, ["source"]),
        Check("write-back", write_back),
    ]


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
            return "; ".join(await asyncio.gather(*map(_ask, clients.values())))
        finally:
            for client in clients.values():
                await client.close()

    return [Check("judge", judge)]


async def _ask(client: JudgeClient) -> str:
    turn = await client.ask(QUESTION, clock=AttemptClock(LIMIT_S - 1))
    return f"{client.provider}: {turn.model_served or turn.model_requested} answered in {turn.latency_ms / 1000:.1f} s"
