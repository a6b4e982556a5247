"""
The work of the minimal Faust and FastStream programs per message, with the same parts as the service.

It reads the timeline from its file, renders it, asks the judge twice, stores one row, and returns an event
for the caller to send. It has no checkpoint between the calls, no lease, no retry across restarts and no
outbox.
"""

import json
import os
import time
from typing import Self

import asyncpg

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.judge.ask.client import create_clients
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.read.extraction import extract_missing_tools, extract_total
from tarsy_scoring.judge.verdict import Message, Question
from tarsy_scoring.timeline.files import SessionFiles
from tarsy_scoring.timeline.render.context import build_context
from tarsy_scoring.timeline.render.fence import new_nonce

TABLE = """
CREATE TABLE plain_scores (
  session_id text PRIMARY KEY, started_at float8 NOT NULL, completed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  total_score int, analysis text, missing_tools jsonb
)
"""
_INSERT = """
INSERT INTO plain_scores (session_id, started_at, total_score, analysis, missing_tools) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (session_id) DO NOTHING
"""
_BUDGET_TOKENS = 100_000
_DEADLINE_S = 600.0


class Pipeline:
    """The source, criteria, judge and database pool of one process, from the settings of the service."""

    def __init__(self) -> None:
        self.settings = load_settings()
        assert self.settings.timeline_dir is not None
        self._source = SessionFiles(self.settings.timeline_dir)
        self._criteria = load_criteria().get("investigation-methodology")
        (self._judge,) = create_clients(self.settings).values()

    async def __aenter__(self) -> Self:
        self._pool = await asyncpg.create_pool(self.settings.require_database(), min_size=0, max_size=12)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._judge.close()
        await self._pool.close()

    async def score(self, session_id: str) -> bytes:
        """Score a session; returns the event to send."""
        started = time.time()
        timeline = await self._source.fetch_timeline(session_id)
        context = build_context(timeline, new_nonce(), _BUDGET_TOKENS)
        messages = self._criteria.open_conversation(context)
        analysis = await self._judge.ask(Question("analysis", messages), clock=AttemptClock(_DEADLINE_S))
        messages += [Message("assistant", analysis.reply), Message("user", self._criteria.follow_up_prompt or "")]
        missing = await self._judge.ask(Question("missing_tools", messages), clock=AttemptClock(_DEADLINE_S))
        total = extract_total(analysis.reply)
        tools = json.dumps([tool.tool_name for tool in extract_missing_tools(missing.reply)])
        await self._pool.execute(_INSERT, session_id, started, total, analysis.reply, tools)
        return json.dumps({"type": "scoring.completed", "session_id": session_id, "total_score": total}).encode()


def slots() -> int:
    """Number of messages that are handled at once."""
    return int(os.environ["SCORING_SLOTS"])
